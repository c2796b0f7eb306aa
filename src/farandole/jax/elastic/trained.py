"""The state that a loop of steps trains with JAX: arrays in `TrainState`s, and how newcomers get them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from farandole.errors import InvalidRequestError
from farandole.jax.elastic import in_loop
from farandole.jax.elastic.checkpoint import Checkpoint
from farandole.jax.elastic.leaves import as_array, as_leaf, described, has_memory
from farandole.jax.elastic.train_state import TrainState
from farandole.numpy.elastic.transfer import transfer_arrays
from farandole.worker.core.retry import Gradients
from farandole.worker.elastic.checkpoint.loop_checkpoints import LoopCheckpoints


class Training:
    """The trained `TrainState`s, by name: JAX's `farandole.worker.elastic.framework.Trained`."""

    reduces_once = True

    def __init__(self, things: Mapping[str, Any], checkpoint: Checkpoint | None) -> None:
        """Create the object.

        Args:
            things: the `TrainState`s by name.
            checkpoint: the checkpoints, for the case that all workers are lost.

        Raises:
            InvalidRequestError: one of them is not a `TrainState`.
        """
        for name, thing in things.items():
            if not isinstance(thing, TrainState):
                raise InvalidRequestError(
                    f"{name} is of type {type(thing).__name__}, whose arrays cannot be replaced when a newcomer gets "
                    f"the others': pass {name}=hvd.elastic.TrainState(params=...), and put each step's results there."
                )
        self._things = things
        self.checkpoints = LoopCheckpoints(checkpoint, things)
        self._seen = in_loop.count()
        """The number of reductions after the last step."""

    def transfer(self, sources: Sequence[int], receivers: Sequence[int], *, may_stream: bool) -> None:
        """Send the receivers the state, which all sources have, all at once. A collective of the world."""
        came = transfer_arrays(self._arrays, self._others, sources, receivers)
        if came is None:
            return
        arrays, others = came
        _check_alike(arrays, self._arrays())
        _check_alike(others, self._others())
        both = {**arrays, **others}
        for path, thing, name in self._trees():
            leaves, structure = jax.tree_util.tree_flatten_with_path(getattr(thing, name))
            found = [as_leaf(leaf, both[path + jax.tree_util.keystr(place)]) for place, leaf in leaves]
            setattr(thing, name, jax.tree_util.tree_unflatten(structure, found))

    def hand_over(self, gradients: Gradients | None, sources: Sequence[int], receivers: Sequence[int]) -> None:
        """Send the receivers the reduced gradients, which all sources have. A collective of the world."""
        reduced: Any = gradients
        came = transfer_arrays(lambda: reduced.state_dict(), dict, sources, receivers)
        if came is not None:
            reduced.load_state_dict(came[0])

    def _arrays(self) -> dict[str, Any]:
        """Return all arrays by name, after waiting for their computation."""
        return {name: np.array(as_array(leaf)) for name, leaf in self._leaves() if has_memory(leaf)}

    def _others(self) -> dict[str, Any]:
        """Return the other leaves by name, such as Python's numbers."""
        return {name: leaf for name, leaf in self._leaves() if not has_memory(leaf)}

    def _leaves(self) -> Iterator[tuple[str, Any]]:
        for path, thing, name in self._trees():
            for place, leaf in jax.tree_util.tree_flatten_with_path(getattr(thing, name))[0]:
                yield path + jax.tree_util.keystr(place), leaf

    def _trees(self) -> list[tuple[str, Any, str]]:
        """Return all attributes of `TrainState`s: the prefix of their leaves' names, the `TrainState`, and the
        attribute's name.
        """
        return [
            (f"{holder}.{name}", thing, name) for holder, thing in self._things.items() for name in list(vars(thing))
        ]

    def has_unused_gradients(self) -> bool:
        """Return False: the gradients belong to the body of the loop.

        Raises:
            InvalidRequestError: the body has reduced no gradients, so each worker would train separately.
        """
        # The body's last functions may still be computed.
        jax.block_until_ready([vars(thing) for thing in self._things.values()])
        before, self._seen = self._seen, in_loop.count()
        if self._seen == before:
            raise InvalidRequestError(
                "the body of the loop has reduced no gradients, so each worker would train for itself. Pass them "
                "through hvd.elastic.reduce_gradients(gradients), or use hvd.distributed(optimizer), and put the "
                "results into the TrainState. If a jitted function reduces them, call it for the first time after "
                "hvd.elastic.steps(...) was called: what was compiled before does not know of the loop."
            )
        return False

    def scale_rate(self, factor: float) -> None:
        """Do nothing: learning rates belong to the body of the loop."""


def _check_alike(theirs: Mapping[str, Any], mine: Mapping[str, Any]) -> None:
    def all_of(arrays: Mapping[str, Any]) -> list[tuple[str, str]]:
        return [(name, described(each)) for name, each in arrays.items()]

    if all_of(theirs) != all_of(mine):
        different = sorted(set(all_of(theirs)) ^ set(all_of(mine)))
        raise InvalidRequestError(
            f"this worker's TrainState has other arrays than the others': {' '.join(different[0])} is not in both. Run "
            "the same program on all workers, and make the state before hvd.elastic.steps(...)."
        )

"""Checkpoints of JAX's arrays in any structure; see `farandole.worker.elastic.checkpoint`."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import jax

from farandole.jax.elastic.leaves import as_array, as_leaf, described, has_memory
from farandole.jax.elastic.train_state import TrainState
from farandole.numpy.elastic.array_checkpoint import VALUES, ArrayCheckpoint


class Checkpoint(ArrayCheckpoint):
    """A directory of checkpoints, which a training writes to and resumes from.

    It saves, by name, `TrainState`s, arrays in any structure, numbers, text and bytes. Each rank writes its share of
    the arrays to safetensors files.

    Example:
        >>> checkpoint = Checkpoint("checkpoints", every_steps=100)
        >>> state = {"params": params, "optimizer": state, "epoch": 3}
        >>> first = checkpoint.load(state) or 0
        >>> params = state["params"]
        >>> for number in range(first + 1, 201):
        ...     if checkpoint.due(number):
        ...         begun = checkpoint.save(state, number, rank=hvd.rank(), size=hvd.size())
        >>> checkpoint.wait()
        True
    """

    def _state_of(self, value: Any) -> Any:
        return value if isinstance(value, VALUES) else _leaves_in(value)

    def _fits(self, target: Any, value: Any) -> bool:
        if isinstance(target, VALUES):
            return True
        return isinstance(value, dict) and _described(_leaves_in(target), value) == _described(value, value)

    def _shape_of(self, target: Any) -> str:
        leaves = _leaves_in(target)
        arrays = _described(leaves, leaves)
        return f"the arrays {', '.join(f'{path} {what}' for path, what in arrays.items())}"

    def _put(self, into: MutableMapping[str, Any], name: str, target: Any, value: Any) -> None:
        if isinstance(target, VALUES):
            into[name] = value
        elif isinstance(target, TrainState):
            vars(target).update(_filled(vars(target), value))
        else:
            into[name] = _filled(target, value)


def _leaves_in(tree: Any) -> dict[str, Any]:
    tree = vars(tree) if isinstance(tree, TrainState) else tree
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path): as_array(leaf) if has_memory(leaf) else leaf for path, leaf in leaves}


def _described(leaves: Any, saved: Any) -> dict[str, str]:
    """Return the kinds of leaves; Python's values may differ in type from the saved ones."""
    return {
        path: described(leaf) if has_memory(leaf) and has_memory(saved.get(path)) else "a value"
        for path, leaf in leaves.items()
    }


def _filled(tree: Any, saved: Any) -> Any:
    """Return the structure with saved values in place of its leaves."""
    paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    return jax.tree_util.tree_unflatten(
        structure, [as_leaf(leaf, saved[jax.tree_util.keystr(path)]) for path, leaf in paths]
    )

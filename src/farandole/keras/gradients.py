"""The gradients of one optimizer: which of them are reduced together, under which names, and which stay local."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from farandole.core.dtype import Adasum, Average
from farandole.keras import backends, left_out
from farandole.keras.options import Options

_numbers = itertools.count(1)


class GradientReduction:
    """Reduces the gradients of one optimizer."""

    def __init__(self, options: Options, key_of: Callable[[Any], Any], backend: str | None = None) -> None:
        """Make one.

        Args:
            options: how.
            key_of: gives a variable's key, the same for a variable of Keras and for the backend's in it.
            backend: whose tensors the gradients are; None: that of Keras 3.
        """
        self.options = options
        self.is_on = True
        """Whether gradients are reduced here: not if an optimizer around this one does it."""
        self._key_of = key_of
        self._backend = backend
        self._local: set[Any] = set()
        self._local_layers: list[Any] = []
        self._name: str | None = None

    def register_local(self, variable: Any) -> None:
        """Let the gradient of a variable stay as it is on each rank."""
        self._local.add(self._key_of(variable))

    def register_local_layers(self, layers: Iterable[Any]) -> None:
        """Let the gradients of all trainable weights of these layers stay local, also of weights that come later."""
        self._local_layers.extend(layers)

    def handed_over(self) -> GradientReduction:
        """Return what reduces in place of this from now on, also what is registered as local here later."""
        other = GradientReduction(self.options, self._key_of, self._backend)
        other._local, other._local_layers = self._local, self._local_layers
        self.is_on = False
        return other

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any], op: int | None = None) -> list[Any]:
        """Return the gradients that are to be applied.

        Args:
            gradients: None stays None.
            variables: of which they are.
            op: another one than the option's.
        """
        results = list(gradients)
        backend = backends.chosen(self._backend)
        if left_out.is_on() and not backend.LEAVES_OUT_BY_ITSELF:
            return results
        keys = [self._key_of(variable) for variable in variables]
        local = self._local_keys()
        shared = [
            index for index, gradient in enumerate(gradients) if gradient is not None and keys[index] not in local
        ]
        if self.options.scale_local:
            ranks = len(self.options.process_set.ranks)
            for index, gradient in enumerate(gradients):
                if gradient is not None and keys[index] in local:
                    results[index] = gradient / ranks
        if self.options.is_local():
            # The sum over several passes is a matter of the arithmetic here, not of other ranks.
            factor = self.options.postscale / self.options.predivide
            for index in shared if factor != 1 else ():
                results[index] = gradients[index] * factor
            return results
        overwriting = {index for index in shared if getattr(variables[index], "overwrite_with_gradient", False)}
        # A "gradient" that is the variable's next value, such as a scale of float8: a sum of these has no meaning.
        parts = [
            ([index for index in shared if index not in overwriting], self.options.op if op is None else op, True),
            (sorted(overwriting), Average, False),
        ]
        for indices, its_op, scaled in parts:
            if indices:
                reduced = backend.reduce(
                    [gradients[index] for index in indices],
                    [f"{self._own_name()}.{index}" for index in indices],
                    bundles(indices, [keys[index] for index in indices], self._groups()),
                    op=its_op,
                    options=self.options,
                    scales=self._scales(its_op) if scaled else (1.0, 1.0),
                )
                for index, result in zip(indices, reduced, strict=True):
                    results[index] = result
        return results

    def _scales(self, op: int) -> tuple[float, float]:
        return (1.0, 1.0) if op == Adasum else (self.options.prescale, self.options.postscale)

    def _local_keys(self) -> set[Any]:
        of_layers = (variable for layer in self._local_layers for variable in layer.trainable_weights)
        return self._local | {self._key_of(variable) for variable in of_layers}

    def _groups(self) -> int | list[list[Any]] | None:
        groups = self.options.groups
        if groups is None or isinstance(groups, int):
            return groups
        return [[self._key_of(variable) for variable in group] for group in groups]

    def _own_name(self) -> str:
        # By the order in which optimizers are used, which is the same on all ranks, where names of layers need not be:
        # a rank that has made one more model counts on from there.
        if self._name is None:
            self._name = f"keras.optimizer{next(_numbers)}.gradient"
        return self._name


def bundles(
    indices: Sequence[int], keys: Sequence[Any], groups: int | list[list[Any]] | None
) -> list[list[int]] | None:
    """Return which gradients the user wants to be reduced together, as places in `indices`; None: nothing was said.

    Args:
        indices: of the gradients that are reduced.
        keys: of their variables.
        groups: so many groups of neighbours, or the keys of variables that belong together; the rest is by itself.

    Example:
        >>> bundles(range(5), "abcde", 2)
        [[0, 1, 2], [3, 4]]
        >>> bundles(range(3), "abc", [["c", "a"]])
        [[2, 0], [1]]
    """
    if groups is None:
        return None
    if isinstance(groups, int):
        size, larger = divmod(len(indices), groups)
        ends = [size * (index + 1) + min(index + 1, larger) for index in range(groups)]
        return [list(range(begin, end)) for begin, end in zip([0, *ends], ends, strict=False) if begin < end]
    places = {key: place for place, key in enumerate(keys)}
    together = [[places[key] for key in group if key in places] for group in groups]
    grouped = {place for group in together for place in group}
    return [group for group in together if group] + [[place] for place in range(len(keys)) if place not in grouped]

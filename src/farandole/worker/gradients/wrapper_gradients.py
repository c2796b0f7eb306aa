"""The gradients of one optimizer or tape: the groups that are reduced together, their names, and those that stay local.

The front end, TensorFlow or a backend of Keras, reduces them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from farandole.errors import InvalidRequestError
from farandole.worker.core.dtype import Adasum, Average
from farandole.worker.gradients.grouping import grouped
from farandole.worker.gradients.wrapper_options import WrapperOptions


class Backend(Protocol):
    """A framework's functions for reducing gradients, as a module or an object."""

    def reduce(
        self,
        gradients: Sequence[Any],
        names: Sequence[str],
        bundles: list[list[int]] | None,
        *,
        op: int,
        options: WrapperOptions,
        scales: tuple[float, float],
    ) -> list[Any]:
        """Return the reduced gradients.

        Args:
            gradients: the gradients, none of which is None.
            names: the name of each gradient, by which those of all ranks are matched.
            bundles: the groups that are reduced together, as places in `gradients`; None: the best grouping.
            op: the reduction.
            options: the user's options.
            scales: the factors before and after the reduction.
        """

    def scaled(self, gradient: Any, factor: Any) -> Any:
        """Return a gradient times a factor."""

    def divided_by_ranks(self, gradient: Any, options: WrapperOptions) -> Any:
        """Return a gradient divided by the number of ranks that reduce."""

    def stand_in(self, variable: Any) -> Any:
        """Return an empty tensor of a variable's type."""

    def after(self, gradient: Any, results: Sequence[Any]) -> Any:
        """Return a gradient that depends on results, so that they are not pruned from a graph although they are not
        used.
        """

    def run_anyway(self, results: Sequence[Any]) -> None:
        """Make sure that results are computed although nothing uses them, and no gradient can depend on them."""


class GradientReduction:
    """Reduces the gradients of one optimizer or tape."""

    def __init__(
        self,
        options: WrapperOptions,
        *,
        name: Callable[[], str],
        key_of: Callable[[Any], Any],
        backend: Callable[[], Backend],
        is_left_out: Callable[[], bool] = bool,
    ) -> None:
        """Prepare the reduction.

        Args:
            options: the options of the reduction.
            name: a function that returns the name of the next call, the same on all ranks. It is part of the gradients'
                names.
            key_of: a function that returns a variable's key, which is the same for Keras' variable and the backend's in
                it.
            backend: a function that returns the backend that reduces.
            is_left_out: a function that returns whether this rank's gradients are currently not reduced.
        """
        self.options = options
        self.is_on = True
        """Whether gradients are reduced here, rather than by an optimizer around this one."""
        self.next_name = name
        """A function that returns the name of the next call."""
        self.key_of = key_of
        """A function that returns a variable's key."""
        self._backend = backend
        self._is_left_out = is_left_out
        self._local: set[Any] = set()
        self._local_layers: list[Any] = []

    def register_local(self, variable: Any) -> None:
        """Mark a variable as local: its gradient is not reduced."""
        self._local.add(self.key_of(variable))

    def register_local_layers(self, layers: Iterable[Any]) -> None:
        """Mark all trainable weights of layers as local, including weights that are created later."""
        self._local_layers.extend(layers)

    def handed_over(self) -> GradientReduction:
        """Return the reduction that replaces this one; later registrations of local variables apply to it as well."""
        other = GradientReduction(
            self.options,
            name=self.next_name,
            key_of=self.key_of,
            backend=self._backend,
            is_left_out=self._is_left_out,
        )
        other._local, other._local_layers = self._local, self._local_layers
        self.is_on = False
        return other

    def is_local(self, variable: Any) -> bool:
        """Return whether the gradient of a variable is local, and not reduced."""
        return self.key_of(variable) in self._local_keys()

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any], op: int | None = None) -> list[Any]:
        """Return the gradients that should be applied.

        Args:
            gradients: the gradients; None is not changed.
            variables: the variables that the gradients belong to.
            op: the reduction; None: that of the options.
        """
        results = list(gradients)
        if self._is_left_out():
            return results
        keys = [self.key_of(variable) for variable in variables]
        local = self._local_keys()
        present = [index for index, gradient in enumerate(gradients) if gradient is not None]
        shared = [index for index in present if keys[index] not in local]
        backend = self._backend()

        is_local = self.options.is_local()
        own = present if is_local else [index for index in present if index not in shared]
        for index in own:
            if self.options.scale_local and index not in shared:
                results[index] = backend.divided_by_ranks(results[index], self.options)
            if self.options.sum_of_passes != 1:  # This is arithmetic on this rank alone.
                results[index] = backend.scaled(results[index], self.options.sum_of_passes)
        if not is_local:
            self._reduce_shared(results, variables, keys, shared, self.options.op if op is None else op)
        return results

    def _reduce_shared(
        self, results: list[Any], variables: Sequence[Any], keys: list[Any], shared: list[int], op: int
    ) -> None:
        """Replace this rank's own gradients at the indices in `shared` by the reduced ones."""
        # Names are numbered without local gradients, because each rank may have different local ones.
        local = self._local_keys()
        global_ones = [index for index, key in enumerate(keys) if key not in local]
        sent = {index: results[index] for index in shared} | self._stand_ins(results, variables, global_ones)
        if not sent:
            return
        name = self.next_name()
        names = {index: f"{name}.{number}" for number, index in enumerate(global_ones) if index in sent}
        reduced = dict(self._reduced(sent, variables, keys, names, op))
        unused = [result for index, result in reduced.items() if index not in shared]
        for index in shared:
            results[index] = reduced[index]
        if unused and shared:
            results[shared[0]] = self._backend().after(results[shared[0]], unused)
        elif unused:
            self._backend().run_anyway(unused)

    def _stand_ins(self, gradients: Sequence[Any], variables: Sequence[Any], indices: list[int]) -> dict[int, Any]:
        """Return empty tensors to be used in place of gradients that are None.

        If a gradient is None on all ranks, this costs almost nothing. If another rank has it, the shapes differ, which
        is an error on all ranks at once; without the empty tensor, the others would wait for it.
        """
        missing = {index: variables[index] for index in indices if gradients[index] is None}
        return {index: self._backend().stand_in(variable) for index, variable in missing.items() if _is_float(variable)}

    def _reduced(
        self, gradients: Mapping[int, Any], variables: Sequence[Any], keys: list[Any], names: dict[int, str], op: int
    ) -> Iterator[tuple[int, Any]]:
        """Yield the indices and the reduced values of the gradients that have names."""
        overwriting = [index for index in names if getattr(variables[index], "overwrite_with_gradient", False)]
        # A "gradient" that is the variable's next value, such as a scale of float8: a sum of these has no meaning.
        usual = [index for index in names if index not in overwriting]
        scales = (1.0, 1.0) if op == Adasum else (self.options.prescale, self.options.postscale)
        for indices, its_op, its_scales in ((usual, op, scales), (overwriting, Average, (1.0, 1.0))):
            if indices:
                reduced = self._backend().reduce(
                    [gradients[index] for index in indices],
                    [names[index] for index in indices],
                    grouped([keys[index] for index in indices], self._groups()),
                    op=its_op,
                    options=self.options,
                    scales=its_scales,
                )
                yield from zip(indices, reduced, strict=True)

    def _local_keys(self) -> set[Any]:
        of_layers = (variable for layer in self._local_layers for variable in layer.trainable_weights)
        return self._local | {self.key_of(variable) for variable in of_layers}

    def _groups(self) -> int | list[list[Any]] | None:
        groups = self.options.groups
        if groups is None or isinstance(groups, int):
            return groups
        return [[self.key_of(variable) for variable in group] for group in groups]


def _is_float(variable: Any) -> bool:
    name = str(variable.dtype)
    return "float" in name and "float8" not in name


def checked_layers(layers: Any) -> list[Any]:
    """Return layers of Keras 3 or tf_keras as a list.

    Args:
        layers: one layer, several, or None.

    Raises:
        ValueError: an argument is not a layer.

    Example:
        >>> checked_layers(None)
        []
    """
    found = layers if isinstance(layers, (list, tuple, set)) else [] if layers is None else [layers]
    used = filter(None, map(sys.modules.get, ("keras", "tf_keras")))
    kinds = tuple(module.layers.Layer for module in used)
    if not all(isinstance(layer, kinds) for layer in found):
        raise InvalidRequestError("All local layers must be of tf.keras.layers.Layer type.")
    return list(found)

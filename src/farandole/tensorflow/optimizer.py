"""`DistributedOptimizer`: the optimizers of `tf.compat.v1.train`, with gradients reduced over all workers."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from farandole.errors import InvalidRequestError
from farandole.tensorflow import reduction
from farandole.tensorflow.compression import Compression
from farandole.tensorflow.passes import Passes
from farandole.tensorflow.variable_check import compare_variables
from farandole.worker.collectives.compression import Compressor
from farandole.worker.core.dtype import Adasum, Average
from farandole.worker.core.group import ProcessSet, global_process_set
from farandole.worker.gradients.wrapper_gradients import GradientReduction
from farandole.worker.gradients.wrapper_options import WrapperOptions, checked

Optimizer = tf.compat.v1.train.Optimizer


class _Wrapper(Optimizer):  # type: ignore[misc, valid-type]
    """The base of all wrappers, which share the state of the wrapped optimizer."""

    def __init__(self, optimizer: Any, name: str, use_locking: bool, options: WrapperOptions) -> None:
        super().__init__(use_locking=use_locking, name=name)
        self._optimizer = optimizer
        self._reduction = GradientReduction(
            replace(options, passes=1),
            name=reduction.names_in_graphs(name, options.process_set),
            key_of=reduction.key_of,
            backend=lambda: reduction,
        )

    def __copy__(self) -> _Wrapper:
        copied = type(self).__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> _Wrapper:
        copied = memo[id(self)] = type(self).__new__(type(self))
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return copied

    def __reduce_ex__(self, _protocol: object) -> Any:
        """Raise an error, when `pickle` calls it.

        Raises:
            InvalidRequestError: always: a pickled optimizer would have no world whose ranks reduce its gradients.
        """
        raise InvalidRequestError(
            "a DistributedOptimizer cannot be pickled. Pickle the optimizer that it wraps, and call "
            "DistributedOptimizer again where it is loaded. tf.compat.v1.train.Saver saves its variables."
        )

    def register_local_var(self, var: Any) -> None:
        """Mark a variable as local: its gradient is not reduced.

        It is divided by the number of ranks, unless scale_local_gradients=False was passed.
        """
        self._reduction.register_local(var)

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Return pairs of a gradient and a variable, as the wrapped optimizer does."""
        return list(self._optimizer.compute_gradients(*args, **kwargs))

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Take the wrapped optimizer's step."""
        return self._optimizer.apply_gradients(grads_and_vars, global_step=global_step, name=name)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """Return a slot of the wrapped optimizer."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """Return the names of the wrapped optimizer's slots."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self) -> Any:
        """Return the wrapped optimizer's variables."""
        return self._optimizer.variables()

    def __getattr__(self, name: str) -> Any:
        # Other attributes are those of the wrapped optimizer: scripts read the learning rate, for instance.
        if name == "_optimizer":
            raise AttributeError(name)
        return getattr(self._optimizer, name)


class _ReducingOptimizer(_Wrapper):
    """A wrapper that reduces the gradients."""

    def __init__(self, optimizer: Any, name: str, use_locking: bool, options: WrapperOptions) -> None:
        super().__init__(optimizer, name, use_locking, options)
        self._passes: Passes | None = None
        if options.passes > 1:
            self._passes = Passes(
                options.passes, averaged=options.average_passes, sparse_as_dense=options.sparse_as_dense
            )
        self._is_step: Any = None
        """Whether the last computed pass ends a step."""

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Return pairs of a reduced gradient and a variable.

        With several passes per step, they are the gradients of all passes, reduced only in the last one.
        """
        pairs = super().compute_gradients(*args, **kwargs)
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        reduced = self._reduction.reduce if self._passes is None else self._added_up
        with tf.control_dependencies(compare_variables(self._reduction, variables, self._name)):
            return list(zip(reduced(gradients, variables), variables, strict=True))

    def _added_up(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        assert self._passes is not None
        places = [index for index, gradient in enumerate(gradients) if gradient is not None]
        shared = [variables[index] for index in places]
        totals, self._is_step = self._passes.add([gradients[index] for index in places], shared)

        def at_the_end() -> list[Any]:
            # Gradients that are None are passed on as well: another rank may have one that is missing here.
            all_of_them: list[Any] = [None] * len(gradients)
            for index, total in zip(places, totals, strict=True):
                all_of_them[index] = total
            reduced = self._reduction.reduce(all_of_them, variables)
            return [reduced[index] for index in places]

        reduced = tf.cond(self._is_step, at_the_end, lambda: totals)
        results: list[Any] = [None] * len(gradients)
        for index, gradient in zip(places, reduced, strict=True):
            results[index] = gradient
        return results

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Take the wrapped optimizer's step; with several passes per step, after the last one.

        `global_step` counts all passes.
        """
        pairs = list(grads_and_vars)
        plain = super().apply_gradients
        if self._passes is None:
            return plain(pairs, global_step, name)
        if self._is_step is None:
            raise InvalidRequestError(
                "with backward_passes_per_step > 1, gradients come from compute_gradients() of this optimizer: call "
                "minimize(), or compute_gradients() before apply_gradients()."
            )

        def step() -> Any:
            with tf.control_dependencies([plain(pairs, global_step, name)]):
                return tf.constant(0)

        def count() -> Any:
            counted = [] if global_step is None else [global_step.assign_add(1, read_value=False)]
            with tf.control_dependencies(counted):
                return tf.constant(0)

        # The gradients are computed in this step even if they are not applied in it.
        with tf.control_dependencies([gradient for gradient, _ in pairs if gradient is not None]):
            return tf.cond(self._is_step, step, count).op


class _AdasumOptimizer(_Wrapper):
    """A wrapper that takes each rank's own step, and combines the changes of the variables by Adasum."""

    def __init__(self, optimizer: Any, name: str, use_locking: bool, options: WrapperOptions) -> None:
        super().__init__(optimizer, name, use_locking, options)
        self._passes = options.passes
        self._step_count: Any = None

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: str | None = None) -> Any:
        """Take the wrapped optimizer's step, and in the last of the passes combine the changes since the first."""
        pairs = list(grads_and_vars)
        changed = [variable for gradient, variable in pairs if gradient is not None]
        if self._passes == 1:
            starts = [_copy(variable) for variable in changed]
            with tf.control_dependencies(starts):
                step = super().apply_gradients(pairs, global_step, name)
            with tf.control_dependencies([] if step is None else [step]):
                now = [variable.read_value() for variable in changed]
                return _assigned(changed, self._combined(changed, now, starts))
        return self._in_passes(pairs, changed, global_step, name)

    def get_slot(self, var: Any, name: str) -> Any:
        """Return a slot; with several passes per step also delta_start: a variable's value at the first of them."""
        own = Optimizer.get_slot(self, var, name)
        return super().get_slot(var, name) if own is None else own

    def get_slot_names(self) -> list[str]:
        """Return the names of all slots."""
        return [*Optimizer.get_slot_names(self), *super().get_slot_names()]

    def _in_passes(self, pairs: list[Any], changed: list[Any], global_step: Any, name: str | None) -> Any:
        slots = [self._zeros_slot(variable, "delta_start", self._name) for variable in changed]
        if self._step_count is None:
            self._step_count = tf.compat.v1.Variable(
                0, dtype=tf.int64, trainable=False, use_resource=True, name="step_count"
            )
        number = self._step_count.read_value()
        is_first, is_last = (tf.equal(number % self._passes, which) for which in (0, self._passes - 1))
        kept = [
            slot.assign(tf.where(is_first, variable.read_value(), slot.read_value()), read_value=False)
            for slot, variable in zip(slots, changed, strict=True)
        ]
        with tf.control_dependencies([*kept, is_last]):
            step = super().apply_gradients(pairs, global_step, name)
            counted = self._step_count.assign_add(1, read_value=False)
        with tf.control_dependencies([step, counted]):
            now, starts = ([each.read_value() for each in those] for those in (changed, slots))
            values = tf.cond(is_last, lambda: self._combined(changed, now, starts), lambda: now)
            return _assigned(changed, values)

    def _combined(self, variables: list[Any], now: list[Any], starts: list[Any]) -> list[Any]:
        """Return the sums of the values at the start and the combined changes since then."""
        changes = [value - start for value, start in zip(now, starts, strict=True)]
        combined = self._reduction.reduce(changes, variables)
        return [start + change for start, change in zip(starts, combined, strict=True)]


def _assigned(variables: list[Any], values: Any) -> Any:
    # An old variable cannot be written to from the branch of a condition.
    return tf.group(
        *(variable.assign(value, read_value=False) for variable, value in zip(variables, values, strict=True))
    )


def _copy(variable: Any) -> Any:
    # Reading an old variable gives its memory, which the step overwrites.
    return tf.raw_ops.Snapshot(input=variable.read_value())


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Return an optimizer that does the same as the given one, with gradients reduced over all ranks.

    Args:
        optimizer: an optimizer of `tf.compat.v1.train`, or of Keras (see `farandole.keras.DistributedOptimizer`).
        name: the name of the result; None: Distributed and the optimizer's type.
        use_locking: see `tf.compat.v1.train.Optimizer`.
        device_dense: the device for the ops of dense gradients; "": TensorFlow's choice.
        device_sparse: the device for the ops of `tf.IndexedSlices`.
        compression: the form in which gradients are sent, such as `Compression.fp16`.
        sparse_as_dense: whether `tf.IndexedSlices` become dense; else the rows of all ranks are gathered.
        backward_passes_per_step: the number of passes whose gradients each rank sums before one reduction. Only in a
            graph, whose local variables must be initialized (`tf.compat.v1.local_variables_initializer`).
        op: Average or Sum; with Adasum, each rank takes its own step, and the *changes* of the variables are combined.
        gradient_predivide_factor: with Average, divide by this before the sum and by size / this after it.
        average_aggregated_gradients: whether the gradients of several passes are averaged; else they are summed.
        num_groups: deprecated; pass the number as `groups`.
        groups: the number of groups of neighbours, or lists of variables, whose gradients are reduced together.
        process_set: the ranks that reduce; on others the optimizer is local.
        scale_local_gradients: whether gradients of local variables are divided by the number of ranks.

    Raises:
        ValueError: an argument is not valid, or init() has not been called.

    Example:
        >>> optimizer = tf.compat.v1.train.AdagradOptimizer(0.001 * hvd.size())  # doctest: +SKIP
        >>> train = hvd.DistributedOptimizer(optimizer).minimize(loss)  # doctest: +SKIP
    """
    arguments: dict[str, Any] = {
        "device_dense": device_dense,
        "device_sparse": device_sparse,
        "compression": compression,
        "sparse_as_dense": sparse_as_dense,
        "backward_passes_per_step": backward_passes_per_step,
        "op": op,
        "gradient_predivide_factor": gradient_predivide_factor,
        "average_aggregated_gradients": average_aggregated_gradients,
        "num_groups": num_groups,
        "groups": groups,
        "process_set": process_set,
        "scale_local_gradients": scale_local_gradients,
    }
    if not isinstance(optimizer, Optimizer):
        return importlib.import_module("farandole.keras").DistributedOptimizer(optimizer, name, **arguments)
    options = checked("DistributedOptimizer", **arguments)
    reduction.check_scope()
    if isinstance(optimizer, _Wrapper):
        raise InvalidRequestError("this optimizer is a DistributedOptimizer already; wrap the original one, once.")
    if options.passes > 1 and tf.executing_eagerly():
        raise InvalidRequestError(
            "backward_passes_per_step > 1 is not yet supported for optimizers of tf.compat.v1.train with eager "
            "execution. Use an optimizer of Keras."
        )
    kind = type(optimizer).__name__
    if op == Adasum:
        return _AdasumOptimizer(optimizer, name or f"DistributedDelta{kind}", use_locking, options)
    return _ReducingOptimizer(optimizer, name or f"Distributed{kind}", use_locking, options)

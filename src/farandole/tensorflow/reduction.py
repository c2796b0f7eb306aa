"""The reduction of the gradients of a step with TensorFlow, for tapes, optimizers and Keras.

These functions are a `farandole.worker.gradients.wrapper_gradients.Backend`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from farandole.errors import InvalidRequestError
from farandole.tensorflow import ops
from farandole.tensorflow.elastic import in_loop
from farandole.tensorflow.functions import allreduce, grouped_allreduce
from farandole.worker.core.basics import current, has_step_loop
from farandole.worker.core.dtype import Adasum
from farandole.worker.core.group import ProcessSet, global_process_set
from farandole.worker.gradients.wrapper_options import WrapperOptions


def reduce(
    gradients: Sequence[Any],
    names: Sequence[str],
    bundles: list[list[int]] | None,
    *,
    op: int,
    options: WrapperOptions,
    scales: tuple[float, float],
) -> list[Any]:
    """Return the reduced gradients.

    In a graph, each is reduced as soon as it is ready, unless it is in a bundle. In eager mode, where each op waits for
    its result, all are reduced together.

    Raises:
        ValueError: the call is made in the scope of a TensorFlow strategy.
    """
    check_scope()
    given = list(gradients)
    if options.sparse_as_dense or op == Adasum or has_step_loop():
        given = [tf.convert_to_tensor(gradient) for gradient in given]
    prescale, postscale = scales
    if has_step_loop():
        return in_loop.reduce(
            given, names, op=op, prescale=prescale, postscale=postscale, process_set=options.process_set
        )
    results: list[Any] = [None] * len(given)
    sparse = [index for index, gradient in enumerate(given) if isinstance(gradient, tf.IndexedSlices)]
    # What goes the way of dense gradients: in place of a sparse one, an empty tensor of another shape than that of a
    # missing one. So ranks that have different kinds of gradients find out there; else they would wait for each other.
    sent = [tf.zeros([0, 0], each.dtype) if index in sparse else each for index, each in enumerate(given)]
    if bundles is None:
        bundles = [list(range(len(given)))] if tf.executing_eagerly() else [[index] for index in range(len(given))]
    for bundle in bundles:
        for same_type in _by_type(bundle, sent):
            reduced = grouped_allreduce(
                [sent[index] for index in same_type],
                device_dense=options.device_dense,
                compression=options.compression,
                op=op,
                prescale_factor=prescale,
                postscale_factor=postscale,
                process_set=options.process_set,
                name=f"{names[same_type[0]]}-{len(same_type)}",
                ignore_name_scope=True,
            )
            for index, result in zip(same_type, reduced, strict=True):
                results[index] = result
    for index in sparse:
        with tf.control_dependencies([results[index]]):
            results[index] = _reduce_slices(given[index], names[index], op, options, prescale * postscale)
    return results


def scaled(gradient: Any, factor: float) -> Any:
    """Return a gradient times a factor."""
    return _with_values(gradient, lambda values: values * tf.cast(factor, values.dtype))


def divided_by_ranks(gradient: Any, options: WrapperOptions) -> Any:
    """Return a gradient divided by the number of ranks that reduce."""
    # In an elastic job, the number of ranks is that of the time when the graph runs.
    elastic = current().notices is not None
    ranks = ops.size(options.process_set.process_set_id) if elastic else len(options.process_set.ranks)
    return _with_values(gradient, lambda values: values / tf.cast(ranks, values.dtype))


def stand_in(variable: Any) -> Any:
    """Return an empty tensor of a variable's type."""
    return tf.zeros([0], tf.as_dtype(variable.dtype).base_dtype)


def after(gradient: Any, results: Sequence[Any]) -> Any:
    """Return a gradient that depends on results, so that a function's graph keeps their ops, for which other ranks
    wait.
    """
    with tf.control_dependencies(results):
        return _with_values(gradient, tf.identity)


def run_anyway(results: Sequence[Any]) -> None:
    """Make a function's graph keep the ops of results on which nothing in it can depend."""
    if tf.executing_eagerly():
        return
    with tf.control_dependencies(results):
        # An op that a function always runs.
        tf.raw_ops.Assert(condition=tf.constant(True), data=[tf.constant("")])


def _with_values(gradient: Any, change: Callable[[Any], Any]) -> Any:
    """Return a gradient with other values."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(change(gradient.values), gradient.indices, dense_shape=gradient.dense_shape)
    return change(gradient)


def key_of(variable: Any) -> Any:
    """Return a key that TensorFlow's variable and the Keras variable around it share; tensors also have one."""
    return variable.ref() if hasattr(variable, "ref") else variable.value.ref()


def check_scope() -> None:
    """Raise InvalidRequestError in the scope of a TensorFlow strategy."""
    if tf.distribute.has_strategy():
        kind = type(tf.distribute.get_strategy()).__name__
        raise InvalidRequestError(
            f"farandole's optimizers and tapes, such as DistributedOptimizer, cannot be used under tf.distribute's "
            f"{kind}: both would reduce the gradients. Make the model outside of the strategy's scope, and start the "
            "workers with `farandole run`."
        )


def _reduce_slices(slices: Any, name: str, op: int, options: WrapperOptions, factor: float) -> Any:
    reduced = allreduce(
        slices,
        device_sparse=options.device_sparse,
        op=op,
        name=name,
        process_set=options.process_set,
        ignore_name_scope=True,
    )
    return reduced if factor == 1.0 else scaled(reduced, factor)


def _by_type(indices: list[int], tensors: Sequence[Any]) -> list[list[int]]:
    """Divide indices into lists of one element type each, because a group must have one."""
    kinds = dict.fromkeys(tensors[index].dtype for index in indices)
    return [[index for index in indices if tensors[index].dtype == kind] for kind in kinds]


# --- names -------------------------------------------------------------------------------------------------------

# The number of uses of each name in a graph.
_given_out: WeakKeyDictionary[Any, dict[str, int]] = WeakKeyDictionary()


def names_in_graphs(prefix: str, process_set: ProcessSet = global_process_set) -> Callable[[], str]:
    """Return a function that returns a unique name for each call within its graph.

    The same call has the same name on ranks that trace their functions in another order, or whose layers have other
    names. In eager mode, where calls are sequential, all have the same name.

    Args:
        prefix: the prefix of the names.
        process_set: the ranks that make these calls.

    Example:
        >>> names_in_graphs("DistributedGradientTape")()
        'DistributedGradientTape.grad'
    """

    def name() -> str:
        of_set = f"{prefix}.set{process_set.process_set_id}" if process_set.process_set_id else prefix
        if tf.executing_eagerly():
            return f"{of_set}.grad"
        graph = tf.compat.v1.get_default_graph()
        # The graph of a function has the function's name; that of a branch of a tf.cond ends with a number, which may
        # differ between processes.
        function = re.sub(r"_\d+$", "", str(getattr(graph, "name", "")))
        numbers = _given_out.setdefault(graph, {})
        numbers[of_set] = number = numbers.get(of_set, -1) + 1
        return ".".join(filter(None, (of_set, re.sub(r"[^\w.-]", "_", function), str(number), "grad")))

    return name

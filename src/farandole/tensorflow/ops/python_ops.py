"""The ops without the plugin library: Python functions that TensorFlow calls, over the collectives of NumPy arrays.

Slower than the plugin's, because each op holds one of TensorFlow's threads until it is done, and all of them take
Python's lock. TensorFlow runs Python functions of one `tf.function` in their order, which is the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf

from farandole.numpy.arrays import Arrays
from farandole.tensorflow.ops.assignment import assigned
from farandole.worker.collectives.barrier import barrier as barrier_of_ranks
from farandole.worker.collectives.barrier import join as join_ranks
from farandole.worker.collectives.render import functions
from farandole.worker.core import basics
from farandole.worker.core.group import ProcessSet


class _ArraysOfTensors(Arrays):
    """Arrays that stand for TensorFlow's tensors: their calls have the names that the plugin's would have."""

    scope = "tensorflow."


arrays = SimpleNamespace(**functions(_ArraysOfTensors(), __name__))

# --- collectives -------------------------------------------------------------------------------------------------


def allreduce(
    tensor: Any,
    *,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    ignore_name_scope: bool = False,
) -> Any:
    """Return the reduction of all ranks' tensors."""
    key = _key(name, ignore_name_scope)

    def run(array: Any) -> Any:
        return arrays.allreduce(
            array, name=key, op=op, prescale_factor=prescale, postscale_factor=postscale, process_set=process_set
        )

    return _like(tensor, _call(run, [tensor], tensor.dtype, key))


def grouped_allreduce(
    tensors: Sequence[Any],
    *,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    ignore_name_scope: bool = False,
) -> list[Any]:
    """Return the reductions of several tensors, which travel together."""
    key = _key(name, ignore_name_scope)

    def run(*given: Any) -> Any:
        return arrays.grouped_allreduce(
            given, name=key, op=op, prescale_factor=prescale, postscale_factor=postscale, process_set=process_set
        )

    results = _call(run, tensors, [tensor.dtype for tensor in tensors], key)
    return [_like(tensor, result) for tensor, result in zip(tensors, results, strict=True)]


def allgather(
    tensor: Any, *, name: str | None, process_set: ProcessSet, ignore_name_scope: bool = False
) -> tuple[Any, Any]:
    """Return all ranks' rows, and how many came from each rank (int64)."""
    ((rows, counts),) = _gather([tensor], False, name, process_set, ignore_name_scope)
    return rows, counts


def grouped_allgather(
    tensors: Sequence[Any], *, name: str | None, process_set: ProcessSet, ignore_name_scope: bool = False
) -> list[tuple[Any, Any]]:
    """Return, for each tensor, what `allgather` does."""
    return _gather(tensors, True, name, process_set, ignore_name_scope)


def _gather(
    tensors: Sequence[Any], grouped: bool, name: str | None, process_set: ProcessSet, ignore_name_scope: bool
) -> list[tuple[Any, Any]]:
    key = _key(name, ignore_name_scope)

    def run(*given: Any) -> Any:
        if grouped:
            rows = arrays.grouped_allgather(given, name=key, process_set=process_set)
        else:
            rows = [arrays.allgather(given[0], name=key, process_set=process_set)]
        lengths = [[len(array)] for array in given]
        counts = arrays.allgather(_int64([lengths]), name=key and f"{key}.counts", process_set=process_set)
        return (*rows, *(counts[:, index, 0] for index in range(len(given))))

    dtypes = [tensor.dtype for tensor in tensors]
    results = _call(run, tensors, [*dtypes, *[tf.int64] * len(tensors)], key)
    rows, counts = results[: len(tensors)], results[len(tensors) :]
    return [
        (_shaped(row, [None, *tensor.shape[1:]] if tensor.shape.rank else None), _shaped(count, [None]))
        for tensor, row, count in zip(tensors, rows, counts, strict=True)
    ]


def broadcast(
    tensor: Any, *, root_rank: int, name: str | None, process_set: ProcessSet, ignore_name_scope: bool = False
) -> Any:
    """Return the root's tensor."""
    key = _key(name, ignore_name_scope)

    def run(array: Any) -> Any:
        return arrays.broadcast(array, root_rank, name=key, process_set=process_set)

    return _like(tensor, _call(run, [tensor], tensor.dtype, key))


def broadcast_in_place(
    variables: Sequence[Any], *, root_rank: int, name: str | None, process_set: ProcessSet
) -> list[Any]:
    """Give the variables the root's values, and return these."""
    base = name or "broadcast"
    written = []
    for index, variable in enumerate(variables):
        key = f"{base}_{index + 1}of{len(variables)}"
        value = broadcast(tf.convert_to_tensor(variable), root_rank=root_rank, name=key, process_set=process_set)
        written.append(assigned(variable, value))
    return written


def alltoall(
    tensor: Any,
    splits: Any | None,
    *,
    name: str | None,
    process_set: ProcessSet,
    ignore_name_scope: bool = False,
) -> tuple[Any, Any]:
    """Return the rows that came from all ranks, and how many came from each (int32)."""
    key = _key(name, ignore_name_scope)

    def run(array: Any, given: Any = None) -> Any:
        if given is None:
            given = _equal_parts(array, process_set)
        return arrays.alltoall(array, splits=given, name=key, process_set=process_set)

    inputs = [tensor] if splits is None else [tensor, splits]
    rows, received = _call(run, inputs, [tensor.dtype, tf.int32], key)
    return _shaped(rows, [None, *tensor.shape[1:]] if tensor.shape.rank else None), _shaped(received, [None])


def reducescatter(
    tensor: Any,
    *,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    ignore_name_scope: bool = False,
) -> Any:
    """Return this rank's rows of the reduction."""
    key = _key(name, ignore_name_scope)

    def run(array: Any) -> Any:
        return arrays.reducescatter(
            array, name=key, op=op, process_set=process_set, prescale_factor=prescale, postscale_factor=postscale
        )

    return _shaped(_call(run, [tensor], tensor.dtype, key), [None, *tensor.shape[1:]] if tensor.shape.rank else None)


def grouped_reducescatter(
    tensors: Sequence[Any],
    *,
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    ignore_name_scope: bool = False,
) -> list[Any]:
    """Return this rank's rows of the reductions of several tensors, which travel together."""
    key = _key(name, ignore_name_scope)

    def run(*given: Any) -> Any:
        return arrays.grouped_reducescatter(
            given, name=key, op=op, process_set=process_set, prescale_factor=prescale, postscale_factor=postscale
        )

    results = _call(run, tensors, [tensor.dtype for tensor in tensors], key)
    return [
        _shaped(result, [None, *tensor.shape[1:]] if tensor.shape.rank else None)
        for tensor, result in zip(tensors, results, strict=True)
    ]


# --- without tensors ---------------------------------------------------------------------------------------------


def join() -> Any:
    """Wait until all ranks have no more data; return the last of them (int32)."""
    return _number(join_ranks)


def barrier(process_set: ProcessSet) -> Any:
    """Wait until all ranks of the process set are here."""

    def run() -> int:
        barrier_of_ranks(process_set)
        return 0

    return _number(run)


def size(process_set_id: int = 0) -> Any:
    """Return the number of ranks in a process set, as it is when the op runs (int32)."""
    return _number(lambda: len(basics.identity().groups[process_set_id]))


def rank() -> Any:
    """Return the rank, as it is when the op runs (int32)."""
    return _number(basics.rank)


def local_size() -> Any:
    """Return the number of workers on this host, as it is when the op runs (int32)."""
    return _number(basics.local_size)


def local_rank() -> Any:
    """Return the rank on this host, as it is when the op runs (int32)."""
    return _number(basics.local_rank)


def process_set_included(process_set_id: int = 0) -> Any:
    """Return 1 if this rank is in a process set when the op runs, else 0 (int32)."""
    return _number(lambda: int(basics.rank() in basics.identity().groups[process_set_id]))


# --- calling Python ----------------------------------------------------------------------------------------------


def _call(run: Callable[..., Any], inputs: Sequence[Any], dtypes: Any, name: str | None) -> Any:
    """Call a function of arrays: now, or where the graph that is being made will run."""
    if tf.executing_eagerly():
        results = run(*(tensor.numpy() for tensor in inputs))
        if not isinstance(dtypes, list):
            return tf.convert_to_tensor(results)
        return [tf.convert_to_tensor(result) for result in results]
    return tf.numpy_function(run, list(inputs), dtypes, name=_op_name(name))


def _number(read: Callable[[], int]) -> Any:
    return _shaped(_call(lambda: _int32(read()), [], tf.int32, None), [])


def _key(name: str | None, ignore_name_scope: bool) -> str | None:
    """Return by what ranks' calls match: in a graph, the name with its scope, so that each call has its own."""
    if name is None or tf.executing_eagerly():
        return name
    if ignore_name_scope:
        return name
    scope = tf.compat.v1.get_default_graph().get_name_scope()
    return f"{scope}/{name}" if scope else name


def _op_name(name: str | None) -> str | None:
    return None if name is None else name.rpartition("/")[2]


def _like(tensor: Any, result: Any) -> Any:
    return _shaped(result, tensor.shape)


def _shaped(result: Any, shape: Any) -> Any:
    """Say the shape of a result that is only known to Python when it runs."""
    if not tf.executing_eagerly():
        result.set_shape(tf.TensorShape(shape))
    return result


def _equal_parts(array: Any, process_set: ProcessSet) -> Any:
    size = len(process_set.ranks)
    part, rest = divmod(len(array), size)
    if rest:
        raise ValueError(
            f"splits not provided, but first dimension {len(array)} is not divisible by the {size} ranks. Pass splits."
        )
    return _int32([part] * size)


def _int32(values: Any) -> Any:
    return np.asarray(values, dtype=np.int32)


def _int64(values: Any) -> Any:
    return np.asarray(values, dtype=np.int64)

"""The collectives that users call: Horovod's signatures over the ops.

Each works in eager mode, in a `tf.function`, and in a graph of `tf.compat.v1`. Ranks' calls match by name: in a graph,
the default is made of the tensor's name, so that ranks which trace in another order still match; in eager mode, unnamed
calls match by their order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from farandole.tensorflow import checks, ops
from farandole.tensorflow.compression import Compression
from farandole.tensorflow.sparse import allreduce_slices
from farandole.worker.collectives.compression import Compressor
from farandole.worker.collectives.reduction_op import op_asked_for
from farandole.worker.core.dtype import Average
from farandole.worker.core.group import ProcessSet, global_process_set

# --- reductions --------------------------------------------------------------------------------------------------


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Reduce a tensor over all ranks of a process set and return the result, the same on all of them.

    Args:
        tensor: a tensor, what `tf.convert_to_tensor` makes one of, or `tf.IndexedSlices`, whose rows are gathered.
        average: Horovod's older way to choose between Average and Sum.
        device_dense: on which device the op is placed.
        device_sparse: the same, for `tf.IndexedSlices`.
        compression: how the tensor travels, such as `Compression.fp16`.
        op: Average (the default), Sum, Adasum, Min, Max or Product.
        prescale_factor: multiplied in before the reduction.
        postscale_factor: multiplied in after it.
        name: ranks' calls match by name.
        process_set: the ranks that take part.
        ignore_name_scope: whether the name counts without the name scope in which the call is made.

    Raises:
        ValueError: both `average` and `op` were given.
        NotImplementedError: `tf.IndexedSlices` with factors, or with another op than Average and Sum.
    """
    op = op_asked_for(op, average, stacklevel=2)
    if isinstance(tensor, tf.IndexedSlices):
        with tf.device(device_sparse or None):
            slices = checks.slices(tensor, op, scaled=(prescale_factor, postscale_factor) != (1.0, 1.0))
            return allreduce_slices(
                slices,
                op=op,
                name=_name(name, "HorovodAllreduce", slices.values),
                process_set=process_set,
                ignore_name_scope=ignore_name_scope,
            )
    with tf.device(device_dense or None):
        tensor = checks.reducible(tensor, op)
        compressed, context = compression.compress(tensor)
        reduced = ops.allreduce(
            compressed,
            name=_name(name, "HorovodAllreduce", tensor),
            op=op,
            prescale=prescale_factor,
            postscale=postscale_factor,
            process_set=process_set,
            ignore_name_scope=ignore_name_scope,
        )
        return compression.decompress(reduced, context)


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Reduce several tensors, which travel together. See `allreduce`.

    Returns:
        The results, in the order of the tensors.
    """
    if not tensors:
        return list(tensors)
    op = op_asked_for(op, average, stacklevel=2)
    results: list[Any] = [None] * len(tensors)
    dense, sparse = [], []
    scaled = (prescale_factor, postscale_factor) != (1.0, 1.0)
    # All of them before the first call: where one is wrong, the other ranks would wait for the rest.
    for index, tensor in enumerate(tensors):
        if isinstance(tensor, tf.IndexedSlices):
            sparse.append((index, checks.slices(tensor, op, scaled=scaled)))
        else:
            dense.append((index, checks.reducible(tensor, op)))
    for index, slices in sparse:
        results[index] = allreduce(
            slices,
            device_sparse=device_sparse,
            op=op,
            name=None if name is None else f"{name}_{index + 1}of{len(tensors)}",
            process_set=process_set,
            ignore_name_scope=ignore_name_scope,
        )
    if dense:
        with tf.device(device_dense or None):
            given = [tensor for _, tensor in dense]
            pairs = [compression.compress(tensor) for tensor in given]
            reduced = ops.grouped_allreduce(
                [tensor for tensor, _ in pairs],
                name=_name(name, "HorovodGroupedAllreduce", given[0], given[-1]),
                op=op,
                prescale=prescale_factor,
                postscale=postscale_factor,
                process_set=process_set,
                ignore_name_scope=ignore_name_scope,
            )
            for (index, _), result, (_, context) in zip(dense, reduced, pairs, strict=True):
                results[index] = compression.decompress(result, context)
    return results


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """Reduce a tensor over all ranks, and return this rank's share of the rows. See `allreduce`."""
    with tf.device(device_dense or None):
        tensor = checks.scatterable(tensor, op)
        compressed, context = compression.compress(tensor)
        reduced = ops.reducescatter(
            compressed,
            name=_name(name, "HorovodReducescatter", tensor),
            op=op,
            prescale=prescale_factor,
            postscale=postscale_factor,
            process_set=process_set,
            ignore_name_scope=ignore_name_scope,
        )
        return compression.decompress(reduced, context)


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """Reduce several tensors, which travel together, and return this rank's shares. See `reducescatter`."""
    if not tensors:
        return list(tensors)
    with tf.device(device_dense or None):
        given = [checks.scatterable(tensor, op) for tensor in tensors]
        pairs = [compression.compress(tensor) for tensor in given]
        reduced = ops.grouped_reducescatter(
            [tensor for tensor, _ in pairs],
            name=_name(name, "HorovodGroupedReducescatter", given[0], given[-1]),
            op=op,
            prescale=prescale_factor,
            postscale=postscale_factor,
            process_set=process_set,
            ignore_name_scope=ignore_name_scope,
        )
        return [compression.decompress(result, context) for result, (_, context) in zip(reduced, pairs, strict=True)]


# --- moving rows -------------------------------------------------------------------------------------------------


def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Concatenate the tensors of all ranks along the first dimension, in rank order."""
    tensor = checks.movable(tensor)
    rows, _ = ops.allgather(
        tensor,
        name=_name(name, "HorovodAllgather", tensor),
        process_set=process_set,
        ignore_name_scope=ignore_name_scope,
    )
    return rows


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Concatenate the tensors of all ranks, for each of several, which travel together. See `allgather`."""
    if not tensors:
        return list(tensors)
    given = [checks.movable(tensor) for tensor in tensors]
    gathered = ops.grouped_allgather(
        given,
        name=_name(name, "HorovodGroupedAllgather", given[0], given[-1]),
        process_set=process_set,
        ignore_name_scope=ignore_name_scope,
    )
    return [rows for rows, _ in gathered]


def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the root's tensor on every rank of a process set; `root_rank` is a rank in the world."""
    tensor = checks.movable(tensor)
    return ops.broadcast(
        tensor,
        root_rank=root_rank,
        name=_name(name, "HorovodBroadcast", tensor),
        process_set=process_set,
        ignore_name_scope=ignore_name_scope,
    )


def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Give variables the root's values, and return these."""
    variables = list(variables)
    for variable in variables:
        checks.writable(variable)
    return ops.broadcast_in_place(variables, root_rank=root_rank, name=name, process_set=process_set)


def alltoall(
    tensor: Any,
    splits: Any | None = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Give rows of the tensor to every rank of a process set, and return those that all ranks gave to this one.

    Args:
        tensor: of which the ranks may differ in the first dimension only.
        splits: how many rows go to each rank, int32; None gives equally many to each.
        name: ranks' calls match by name.
        ignore_name_scope: whether the name counts without the name scope in which the call is made.
        process_set: the ranks that take part.

    Returns:
        The rows; with splits, a pair of them and of how many came from each rank.
    """
    tensor = checks.movable(tensor)
    if splits is not None:
        splits = checks.splits_of(splits)
    rows, received = ops.alltoall(
        tensor,
        splits,
        name=_name(name, "HorovodAlltoall", tensor),
        process_set=process_set,
        ignore_name_scope=ignore_name_scope,
    )
    return rows if splits is None else (rows, received)


# --- without tensors ---------------------------------------------------------------------------------------------


def join() -> Any:
    """Say that this rank has no more data, wait for all others to say so, and return the last of them."""
    return ops.join()


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Return the number of ranks in a process set, as it is when the op runs."""
    return ops.size(process_set_id)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """Return 1 if this rank is in a process set when the op runs, else 0."""
    return ops.process_set_included(process_set_id)


def local_size_op(name: str | None = None) -> Any:
    """Return the number of workers on this host, as it is when the op runs."""
    return ops.local_size()


def rank_op(name: str | None = None) -> Any:
    """Return the rank, as it is when the op runs."""
    return ops.rank()


def local_rank_op(name: str | None = None) -> Any:
    """Return the rank on this host, as it is when the op runs."""
    return ops.local_rank()


# --- names -------------------------------------------------------------------------------------------------------


def _name(name: str | None, kind: str, *tensors: Any) -> str | None:
    """Return the name of a call: the user's; else in a graph, one made of the tensors' names; else none."""
    if name is not None or tf.executing_eagerly():
        return name
    return "_".join([kind, *(re.sub(r"[^a-zA-Z0-9_]", "_", tensor.name) for tensor in tensors)])

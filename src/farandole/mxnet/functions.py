"""The collectives that users call, with Horovod's signatures over the declared ones.

All but `allgather` and `alltoall` return at once: MXNet's engine computes their results in its order, and whoever uses
one waits for it, as with any operation of MXNet. Ranks' calls match by name, and unnamed ones by the order in which the
program makes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mxnet as mx

from farandole.mxnet.arrays import Arrays, Sent
from farandole.mxnet.compression import Compression
from farandole.worker.collectives.allgather import ALLGATHER
from farandole.worker.collectives.allreduce import ALLREDUCE
from farandole.worker.collectives.alltoall import ALLTOALL
from farandole.worker.collectives.broadcast import BROADCAST
from farandole.worker.collectives.compression import Feedback, Recipe
from farandole.worker.collectives.declaration import PLAIN, Form, Options
from farandole.worker.collectives.forms import Forms, Runner
from farandole.worker.collectives.reducescatter import REDUCESCATTER
from farandole.worker.collectives.reduction_op import op_asked_for
from farandole.worker.core.dtype import Average
from farandole.worker.core.group import ProcessSet, global_process_set

_forms = Forms(Arrays())
_IN_PLACE, _GROUPED = Form(in_place=True), Form(grouped=True)
_allreduce = _forms.runner(ALLREDUCE, PLAIN)
_allreduce_in_place = _forms.runner(ALLREDUCE, _IN_PLACE)
_grouped_allreduce = _forms.runner(ALLREDUCE, _GROUPED)
_grouped_allreduce_in_place = _forms.runner(ALLREDUCE, Form(grouped=True, in_place=True))
_allgather = _forms.runner(ALLGATHER, PLAIN)
_grouped_allgather = _forms.runner(ALLGATHER, _GROUPED)
_broadcast = _forms.runner(BROADCAST, PLAIN)
_broadcast_in_place = _forms.runner(BROADCAST, _IN_PLACE)
_alltoall = _forms.runner(ALLTOALL, PLAIN)
_reducescatter = _forms.runner(REDUCESCATTER, PLAIN)
_grouped_reducescatter = _forms.runner(REDUCESCATTER, _GROUPED)

# --- reductions --------------------------------------------------------------------------------------------------


def allreduce(
    tensor: mx.nd.NDArray,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
    compression: Any = Compression.none,
) -> mx.nd.NDArray:
    """Reduce an array over all ranks of a process set and return the result, the same on all of them.

    Args:
        tensor: a dense array in host memory, of the same shape and element type on all ranks.
        average: Horovod's older way to choose between Average and Sum.
        name: ranks' calls match by name; unnamed calls match by their order.
        priority: of the calls whose arrays are ready, MXNet's engine begins those with the highest one first.
        prescale_factor: multiplied in before the reduction.
        postscale_factor: multiplied in after it.
        process_set: the ranks that take part.
        op: Average (the default), Sum, Adasum, Min, Max or Product. The average of integers is truncated toward zero.
        compression: how the array travels, such as `Compression.fp16`.

    Raises:
        ValueError: the call is wrong by itself.
        mxnet.base.MXNetError: where the result is used: the ranks' arrays do not fit together, or a worker was lost.

    Example:
        >>> average = hvd.allreduce(mx.nd.ones((3,)) * hvd.rank())  # doctest: +SKIP
    """
    options = {"average": None, **_options(op_asked_for(op, average, stacklevel=2), prescale_factor, postscale_factor)}
    return _compressed(_allreduce, tensor, priority, name, process_set, options, compression)


def allreduce_(
    tensor: mx.nd.NDArray,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> mx.nd.NDArray:
    """Do what `allreduce` does, in place, and return what was given."""
    options = {"average": None, **_options(op_asked_for(op, average, stacklevel=2), prescale_factor, postscale_factor)}
    _allreduce_in_place(Sent(tensor, priority, in_place=True), name, process_set, options)
    return tensor


def grouped_allreduce(
    tensors: Sequence[mx.nd.NDArray],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
    compression: Any = Compression.none,
) -> list[mx.nd.NDArray]:
    """Do what `allreduce` does for several arrays, which travel together; they may differ in shape and type."""
    options = {"average": None, **_options(op_asked_for(op, average, stacklevel=2), prescale_factor, postscale_factor)}
    return _all_compressed(_grouped_allreduce, tensors, priority, name, process_set, options, compression)


def grouped_allreduce_(
    tensors: Sequence[mx.nd.NDArray],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> Sequence[mx.nd.NDArray]:
    """Do what `grouped_allreduce` does, in place, and return what was given."""
    options = {"average": None, **_options(op_asked_for(op, average, stacklevel=2), prescale_factor, postscale_factor)}
    sent = [Sent(tensor, priority, in_place=True) for tensor in tensors]
    _grouped_allreduce_in_place(sent, name, process_set, options)
    return tensors


def reducescatter(
    tensor: mx.nd.NDArray,
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: Any = Compression.none,
) -> mx.nd.NDArray:
    """Reduce an array over all ranks of a process set, and return this rank's rows of the result.

    The first dimension is divided among the ranks, in rank order; where it does not come out even, the first ranks get
    one row more. The operations are those of `allreduce` without Adasum. See there for the other arguments.
    """
    options = _options(op, prescale_factor, postscale_factor)
    return _compressed(_reducescatter, tensor, priority, name, process_set, options, compression)


def grouped_reducescatter(
    tensors: Sequence[mx.nd.NDArray],
    op: int = Average,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: Any = Compression.none,
) -> list[mx.nd.NDArray]:
    """Do what `reducescatter` does for several arrays, which travel together."""
    options = _options(op, prescale_factor, postscale_factor)
    return _all_compressed(_grouped_reducescatter, tensors, priority, name, process_set, options, compression)


# --- rows from all ranks -----------------------------------------------------------------------------------------


def allgather(
    tensor: mx.nd.NDArray,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> mx.nd.NDArray:
    """Return the rows of all ranks' arrays, in rank order; these may differ in the first dimension only.

    Waits for the result, whose shape is not known before. See `allreduce` for the arguments.
    """
    rows: mx.nd.NDArray = _allgather(Sent(tensor, priority), name, process_set, {}).array
    return rows


def grouped_allgather(
    tensors: Sequence[mx.nd.NDArray],
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> list[mx.nd.NDArray]:
    """Do what `allgather` does for several arrays, which travel together."""
    return _arrays(_grouped_allgather([Sent(tensor, priority) for tensor in tensors], name, process_set, {}))


def alltoall(
    tensor: mx.nd.NDArray,
    splits: Any | None = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Give rows of the array to every rank of a process set, and return those that all ranks gave to this one.

    Waits for the result, whose shape is not known before.

    Args:
        tensor: of which the ranks may differ in the first dimension only.
        splits: how many rows go to each rank, a 1-D array of int32 or a list of whole numbers; None gives equally many
            to each.
        name: ranks' calls match by name; unnamed calls match by their order.
        priority: see `allreduce`.
        process_set: the ranks that take part.

    Returns:
        The rows; with splits, a pair of them and of how many came from each rank.
    """
    if isinstance(splits, mx.nd.NDArray):
        splits = splits.asnumpy()
    result = _alltoall(Sent(tensor, priority), name, process_set, {"splits": splits})
    return result.array if splits is None else tuple(_arrays(result))


# --- from one rank -----------------------------------------------------------------------------------------------


def broadcast(
    tensor: mx.nd.NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> mx.nd.NDArray:
    """Return the root's array on every rank of a process set; `root_rank` is a rank in the world."""
    result: mx.nd.NDArray = _broadcast(Sent(tensor, priority), name, process_set, {"root": root_rank}).array
    return result


def broadcast_(
    tensor: mx.nd.NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> mx.nd.NDArray:
    """Write the root's array over this rank's, and return it."""
    _broadcast_in_place(Sent(tensor, priority, in_place=True), name, process_set, {"root": root_rank})
    return tensor


# --- carried out ---------------------------------------------------------------------------------------------------


def _options(op: int, prescale_factor: float, postscale_factor: float) -> Options:
    return {"op": op, "prescale": prescale_factor, "postscale": postscale_factor}


def _compressed(
    run: Runner,
    tensor: mx.nd.NDArray,
    priority: int,
    name: str | None,
    process_set: ProcessSet,
    options: Options,
    compression: Any,
) -> mx.nd.NDArray:
    """Carry out a reduction; the compression takes and gives arrays of MXNet."""
    if isinstance(compression, (Recipe, Feedback)):
        result: mx.nd.NDArray = run(Sent(tensor, priority), name, process_set, options, compression).array
        return result
    compressed, context = compression.compress(tensor)
    return compression.decompress(run(Sent(compressed, priority), name, process_set, options).array, context)


def _all_compressed(
    run: Runner,
    tensors: Sequence[mx.nd.NDArray],
    priority: int,
    name: str | None,
    process_set: ProcessSet,
    options: Options,
    compression: Any,
) -> list[mx.nd.NDArray]:
    """Do what `_compressed` does for several arrays."""
    if isinstance(compression, (Recipe, Feedback)):
        return _arrays(run([Sent(each, priority) for each in tensors], name, process_set, options, compression))
    pairs = [compression.compress(tensor) for tensor in tensors]
    sent = [Sent(compressed, priority) for compressed, _ in pairs]
    results = _arrays(run(sent, name, process_set, options))
    return [compression.decompress(array, context) for array, (_, context) in zip(results, pairs, strict=True)]


def _arrays(sent: Sequence[Sent]) -> list[mx.nd.NDArray]:
    return [each.array for each in sent]

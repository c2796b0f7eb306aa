"""allreduce: every rank gets the reduction of all ranks' tensors."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from farandole.core.binding import NativeRequest
from farandole.core.dtype import Average, Kind, Max, Min, Product, Sum
from farandole.core.group import ProcessSet, global_process_set
from farandole.core.handle import Call, Pending
from farandole.core.request import make_request
from farandole.core.session import Session
from farandole.errors import InvalidRequestError
from farandole.torch.collectives.call import (
    call_of_one,
    check_one_device,
    later,
    lies_ready,
    member_names,
    native_dtype_to_reduce,
    note_write,
    note_writes,
    now,
    now_in_place,
    tracked,
)
from farandole.torch.collectives.compressed import compressed_call
from farandole.torch.collectives.reduction import allreduce_call, reduction_member
from farandole.torch.compression import Compression, Feedback, Recipe


def _call_of_one(
    session: Session,
    group: int,
    name: str,
    tensor: torch.Tensor,
    output: torch.Tensor | None,
    op: int,
    prescale: float,
    postscale: float,
) -> Call:
    """Return a call that reduces a tensor into `output`, which is the result; None is a new one."""
    if not tensor.is_cpu:
        return call_of_one(session, reduction_member(tensor, output, name, op, prescale, postscale, group))
    # The way of every small tensor: nothing is made anew that can be used again.
    dtype = native_dtype_to_reduce(tensor, op)
    result = torch.empty_like(tensor, requires_grad=False) if output is None else output
    encoded, shape = name.encode(), tensor.shape
    single = session.pool.single(encoded, shape)
    single.fill(
        Kind.ALLREDUCE, dtype, op, group, 0, shape, prescale, postscale, encoded, tensor.data_ptr(), result.data_ptr()
    )

    def finish(_: Any) -> torch.Tensor:
        if result is tensor:  # Also holds the input until the engine has read it.
            note_write(result)
        return result

    return Pending(session.engine, single, finish)


def _call_of_several(
    session: Session,
    group: int,
    name: str,
    tensors: Sequence[torch.Tensor],
    in_place: bool,
    op: int,
    prescale: float,
    postscale: float,
) -> Call:
    """Return a call that reduces tensors, in place or into new ones, which are the result."""
    tensors = tuple(tensors)
    if not tensors or not all(map(lies_ready, tensors)):
        check_one_device(tensors)
        outputs = tensors if in_place else (None,) * len(tensors)
        names = member_names(name, len(tensors))
        return allreduce_call(session, tensors, outputs, names, op, prescale, postscale, group)
    # Lists of what differs are all that is made for each tensor.
    dtypes, shapes = tuple([tensor.dtype for tensor in tensors]), tuple([tensor.shape for tensor in tensors])

    def requests() -> list[NativeRequest]:
        return [
            make_request(
                Kind.ALLREDUCE, "", dtype=native_dtype_to_reduce(tensor, op), op=op, group=group, shape=tensor.shape
            )
            for tensor in tensors
        ]

    series = session.pool.series((Kind.ALLREDUCE, op, group, dtypes, shapes), requests)
    results = tensors if in_place else tuple([torch.empty_like(tensor, requires_grad=False) for tensor in tensors])
    inputs = [tensor.data_ptr() for tensor in tensors]
    series.name(name)
    series.scale(prescale, postscale)
    series.place(inputs, inputs if in_place else [result.data_ptr() for result in results])

    def finish(_: Any) -> tuple[torch.Tensor, ...]:
        if results is tensors:  # Also holds the inputs until the engine has read them.
            note_writes(results)
        return results

    return Pending(session.engine, series, finish)


def _reduction(op: int | None, average: bool | None) -> int:
    """Return the operation that `op` and Horovod's older `average` ask for together."""
    if average is None:
        return Average if op is None else op
    if op is not None:
        raise InvalidRequestError("The op parameter supersedes average. Please provide only one of them.")
    warnings.warn("average is deprecated: use op=hvd.Average or op=hvd.Sum.", DeprecationWarning, stacklevel=3)
    return Average if average else Sum


# --- one tensor ----------------------------------------------------------------------------------------------


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce a tensor over all ranks of a process set and return the result, the same on all of them.

    Differentiable. The gradient of Average, Sum and Adasum is the same reduction of the gradients; of Min and Max, the
    sum of the gradients where this rank's element is the result, shared by those that have it; of Product, the sum of
    the gradients times the product of the other ranks' elements.

    Args:
        tensor: contiguous, of the same shape and type on all ranks.
        average: Horovod's older way to choose between Average and Sum.
        name: ranks' calls match by name; unnamed calls match by their order.
        compression: how the tensor travels, such as `Compression.bf16`. What `Compression.int8`, `.topk` and
            `.powersgd` do not send is lost, unless they remember it: see `Recipe.with_feedback`. The gradient is that
            of the reduction without compression.
        op: Average (the default), Sum, Adasum, Min, Max or Product. The average of integers is truncated toward zero.
            Of truth values, Sum and Max are "or", Product and Min are "and".
        prescale_factor: multiplied in before the reduction.
        postscale_factor: multiplied in after it.
        process_set: which ranks take part.

    Raises:
        ValueError: the call is wrong by itself.
        HorovodInternalError: the ranks' tensors do not fit together, or a worker was lost.

    Example:
        >>> hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum)  # doctest: +SKIP
        tensor([3.])
    """
    op = _reduction(op, average)
    how = op, prescale_factor, postscale_factor
    if isinstance(compression, (Recipe, Feedback)):
        (reduced,) = _reduce_compressed("allreduce", name, compression, *how, process_set, [tensor])
        return reduced
    compressed, context = compression.compress(tensor)
    if tracked(compressed):
        (reduced,) = _Allreduce.apply("allreduce", name, *how, process_set, compressed)
    else:
        reduced = now("allreduce", name, process_set, _call_of_one, compressed, None, *how)
    return compression.decompress(reduced, context)


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin an `allreduce` and return a handle for `synchronize`. Not differentiable.

    The tensor must not change until then.
    """
    op = _reduction(op, average)
    return later("allreduce", name, process_set, _call_of_one, tensor, None, op, prescale_factor, postscale_factor)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce a tensor over all ranks of a process set, in place, and return it. See `allreduce`."""
    op = _reduction(op, average)
    how = tensor, tensor, op, prescale_factor, postscale_factor
    return now_in_place([tensor], "allreduce", name, process_set, _call_of_one, *how)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin an `allreduce_` and return a handle for `synchronize`."""
    op = _reduction(op, average)
    return later("allreduce", name, process_set, _call_of_one, tensor, tensor, op, prescale_factor, postscale_factor)


# --- several tensors -----------------------------------------------------------------------------------------


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduce several tensors together; they may differ in shape and type. See `allreduce`."""
    op = _reduction(op, average)
    how = op, prescale_factor, postscale_factor
    if isinstance(compression, (Recipe, Feedback)):
        return list(_reduce_compressed("grouped_allreduce", name, compression, *how, process_set, tensors))
    pairs = [compression.compress(tensor) for tensor in tensors]
    compressed = [tensor for tensor, _ in pairs]
    if any(map(tracked, compressed)):
        reduced = _Allreduce.apply("grouped_allreduce", name, *how, process_set, *compressed)
    else:
        reduced = now("grouped_allreduce", name, process_set, _call_of_several, compressed, False, *how)
    return [compression.decompress(tensor, context) for tensor, (_, context) in zip(reduced, pairs, strict=True)]


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin a `grouped_allreduce` and return one handle for all. Not differentiable."""
    op = _reduction(op, average)
    how = False, op, prescale_factor, postscale_factor
    return later("grouped_allreduce", name, process_set, _call_of_several, tensors, *how)


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> tuple[torch.Tensor, ...]:
    """Reduce several tensors together, in place, and return them. See `grouped_allreduce`."""
    op = _reduction(op, average)
    how = True, op, prescale_factor, postscale_factor
    return now_in_place(tensors, "grouped_allreduce", name, process_set, _call_of_several, tensors, *how)


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin a `grouped_allreduce_` and return one handle for all."""
    op = _reduction(op, average)
    how = True, op, prescale_factor, postscale_factor
    return later("grouped_allreduce", name, process_set, _call_of_several, tensors, *how)


# --- with a compression that is a part of the reduction -------------------------------------------------------


def _reduce_compressed(
    operation: str,
    name: str | None,
    compression: Recipe | Feedback,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    tensors: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, ...]:
    if name is None and isinstance(compression, Feedback):
        raise InvalidRequestError(
            "a compression with feedback remembers by name what it has not sent: pass name= to the call, the same one "
            "each time."
        )
    how = operation, name, compression, op, prescale, postscale, process_set
    if any(map(tracked, tensors)):
        results: tuple[torch.Tensor, ...] = _CompressedAllreduce.apply(*how, *tensors)
        return results
    return _compressed_now(*how, tensors)


def _compressed_now(
    operation: str,
    name: str | None,
    compression: Recipe | Feedback,
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    tensors: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, ...]:
    def make(session: Session, group: int, full_name: str) -> Call:
        check_one_device(tensors)
        names = [full_name] if operation == "allreduce" else member_names(full_name, len(tensors))
        outputs = [None] * len(tensors)
        return compressed_call(session, compression, tensors, outputs, names, op, prescale, postscale, group)

    results: tuple[torch.Tensor, ...] = now(operation, name, process_set, make)
    return results


class _CompressedAllreduce(torch.autograd.Function):
    """A compressed reduction. Gradient: that of the reduction itself."""

    @staticmethod
    def forward(
        ctx: Any,
        operation: str,
        name: str | None,
        compression: Recipe | Feedback,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.how = op, process_set, prescale, postscale
        return _compressed_now(operation, name, compression, op, prescale, postscale, process_set, tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        results = _reduced([gradient.contiguous() for gradient in gradients], *ctx.how)
        return (None, None, None, None, None, None, None, *results)


# --- gradients -----------------------------------------------------------------------------------------------


class _Allreduce(torch.autograd.Function):
    """A reduction of one tensor or of several. Gradient: see `allreduce`."""

    @staticmethod
    def forward(
        ctx: Any,
        operation: str,
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: ProcessSet,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.how = op, prescale, postscale, process_set
        if op in (Min, Max, Product):
            ctx.save_for_backward(*tensors)
        if operation == "allreduce":
            return (now(operation, name, process_set, _call_of_one, tensors[0], None, op, prescale, postscale),)
        return now(operation, name, process_set, _call_of_several, tensors, False, op, prescale, postscale)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        op, prescale, postscale, process_set = ctx.how
        gradients = tuple(gradient.contiguous() for gradient in gradients)
        if op in (Min, Max):
            results = _extreme_gradients(ctx.saved_tensors, gradients, op, prescale, postscale, process_set)
        elif op == Product:
            results = _product_gradients(ctx.saved_tensors, gradients, prescale, postscale, process_set)
        else:
            results = _reduced(gradients, op, process_set, prescale, postscale)
        return (None, None, None, None, None, None, *results)


def _reduced(
    tensors: Sequence[torch.Tensor], op: int, process_set: ProcessSet, prescale: float = 1.0, postscale: float = 1.0
) -> list[torch.Tensor]:
    how: dict[str, Any] = {
        "op": op,
        "prescale_factor": prescale,
        "postscale_factor": postscale,
        "process_set": process_set,
    }
    return [allreduce(tensors[0], **how)] if len(tensors) == 1 else grouped_allreduce(tensors, **how)


def _extreme_gradients(
    tensors: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    op: int,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> list[torch.Tensor]:
    """Give the sum of the gradients to the ranks that have the extreme element, in equal shares."""
    # A negative factor turns the largest into the smallest.
    reached = op if prescale >= 0 else Min + Max - op
    extremes = _reduced([tensor.detach() for tensor in tensors], reached, process_set)
    mine = [(tensor == extreme).to(tensor.dtype) for tensor, extreme in zip(tensors, extremes, strict=True)]
    sums = _reduced([*gradients, *mine], Sum, process_set)
    totals, owners = sums[: len(tensors)], sums[len(tensors) :]
    return [
        total * own * (prescale * postscale) / owner.clamp(min=1)
        for total, own, owner in zip(totals, mine, owners, strict=True)
    ]


def _product_gradients(
    tensors: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> list[torch.Tensor]:
    """Multiply the sum of the gradients with the product of the other ranks' elements, also where some are 0."""
    scaled = [tensor.detach() * prescale for tensor in tensors]
    zero = [(tensor == 0).to(tensor.dtype) for tensor in scaled]
    products = _reduced(
        [torch.where(tensor == 0, torch.ones_like(tensor), tensor) for tensor in scaled], Product, process_set
    )
    sums = _reduced([*gradients, *zero], Sum, process_set)
    totals, zeros = sums[: len(tensors)], sums[len(tensors) :]
    results = []
    for total, own, own_zero, product, all_zeros in zip(totals, scaled, zero, products, zeros, strict=True):
        others = torch.where(own == 0, product, product / own)
        results.append(total * torch.where(all_zeros - own_zero > 0, 0, others) * (prescale * postscale))
    return results

"""Members and calls of an allreduce of tensors that may lie anywhere: what the forms of allreduce are made of."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from farandole.core.dtype import Kind, WireForm
from farandole.core.handle import Call
from farandole.core.request import make_request
from farandole.core.session import Session
from farandole.torch.collectives.call import Member, call_of_several, native_dtype_to_reduce, note_write
from farandole.torch.staging import from_host, to_host


def allreduce_call(
    session: Session,
    tensors: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor | None],
    names: Sequence[str],
    op: int,
    prescale: float,
    postscale: float,
    group: int,
) -> Call:
    """Return a call that reduces each tensor into its output (None: a new one), under the full name given.

    The result is the outputs.
    """
    members = [
        reduction_member(tensor, output, name, op, prescale, postscale, group)
        for tensor, output, name in zip(tensors, outputs, names, strict=True)
    ]
    return call_of_several(session, members)


def reduction_member(
    tensor: torch.Tensor,
    output: torch.Tensor | None,
    name: str,
    op: int,
    prescale: float,
    postscale: float,
    group: int,
    form: WireForm = WireForm.NONE,
    ratio: float = 0.0,
    residual: torch.Tensor | None = None,
) -> Member:
    """Reduce a tensor, wherever it lies, into `output`, which is the result; None is a new one.

    Args:
        tensor: contiguous.
        output: as the tensor, or None.
        name: the full one.
        op: the reduction.
        prescale: multiplied in before it.
        postscale: multiplied in after it.
        group: in which it is done.
        form: how it travels.
        ratio: of the elements that are sent, with `WireForm.TOPK`.
        residual: what was not sent before: float32 on the CPU, as many elements as the tensor has.
    """
    dtype = native_dtype_to_reduce(tensor, op)
    host, event = to_host(tensor)
    result = torch.empty_like(tensor, requires_grad=False) if output is None else output
    # A staged tensor is reduced where it was staged; a CPU tensor goes straight to its output.
    target = result if host is tensor else host
    request = make_request(
        Kind.ALLREDUCE,
        name,
        dtype=dtype,
        op=op,
        group=group,
        shape=tensor.shape,
        prescale=prescale,
        postscale=postscale,
        input=host.data_ptr(),
        output=target.data_ptr(),
        compression=form,
        compression_ratio=ratio,
        residual=None if residual is None else residual.data_ptr(),
    )

    def finish(_: int, residual: torch.Tensor | None = residual) -> torch.Tensor:  # which the engine writes
        from_host(target, result)
        if result is tensor:  # Also holds the input until the engine has read it.
            note_write(result)
        return result

    return request, event, finish

"""Allreduce with a compression that is a part of it (see `farandole.torch.compression`).

The engine does int8 and top-k; what it has not sent it leaves in a residual, which belongs to the user's memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from farandole.core.dtype import Average, Sum
from farandole.core.handle import Call
from farandole.core.session import Session
from farandole.errors import InvalidRequestError
from farandole.torch.collectives.call import call_of_several
from farandole.torch.collectives.powersgd import powersgd_call
from farandole.torch.collectives.reduction import reduction_member
from farandole.torch.compression import Feedback, Int8, PowerSGD, Recipe, TopK


def check_reducible(op: int) -> None:
    """Raise ValueError if such a reduction cannot be compressed."""
    if op not in (Average, Sum):
        raise InvalidRequestError(
            "Compression.int8, .topk and .powersgd are for op=hvd.Average and op=hvd.Sum only; use another compression."
        )


def compressed_call(
    session: Session,
    compression: Recipe | Feedback,
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

    Raises:
        ValueError: the reduction or a tensor's type cannot be compressed so.
    """
    check_reducible(op)
    recipe, memory = (compression.recipe, compression) if isinstance(compression, Feedback) else (compression, None)
    if isinstance(recipe, PowerSGD):
        return powersgd_call(session, recipe.rank, memory, tensors, outputs, names, op, prescale, postscale, group)
    assert isinstance(recipe, (Int8, TopK))
    members = [
        reduction_member(
            tensor,
            output,
            name,
            op,
            prescale,
            postscale,
            group,
            recipe.form,
            recipe.ratio,
            _residual(memory, name, tensor),
        )
        for tensor, output, name in zip(tensors, outputs, names, strict=True)
    ]
    return call_of_several(session, members)


def _residual(memory: Feedback | None, name: str, tensor: torch.Tensor) -> torch.Tensor | None:
    """Return what of this name has not been sent: zeros in the beginning, and after a change of size."""
    if memory is None:
        return None
    residual: torch.Tensor | None = memory.states.get(name)
    if residual is None or residual.numel() != tensor.numel():
        residual = memory.states[name] = torch.zeros(tensor.numel(), dtype=torch.float32, device="cpu")
    return residual

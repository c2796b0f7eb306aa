"""Calls for an optimizer, which names its tensors and waits for its calls itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from farandole.torch.collectives.tensors import FRONT
from farandole.worker.collectives import calls, compressed
from farandole.worker.collectives.allgather import ALLGATHER
from farandole.worker.collectives.calls import Member
from farandole.worker.collectives.compression import Feedback, Recipe
from farandole.worker.collectives.declaration import Received
from farandole.worker.core.dtype import DType
from farandole.worker.core.group import global_process_set
from farandole.worker.core.handle import Call
from farandole.worker.core.session import Session


def native_dtype(tensor: torch.Tensor) -> DType:
    """Return the engine's element type of a tensor that is reduced.

    Raises:
        ValueError: the tensor cannot be reduced as it is.
    """
    return calls.reducible_dtype(FRONT, tensor)


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
    """Return a call that reduces each tensor into its output (None: a new one), under its full name.

    The result is the outputs.
    """
    options = {"op": op, "prescale": prescale, "postscale": postscale}
    return calls.allreduce_call(FRONT, session, tensors, outputs, names, options, group)


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
    """Return a call like `allreduce_call`, with a compression that is a part of the reduction.

    Raises:
        ValueError: this compression does not support the reduction or a tensor's type.
    """
    options = {"op": op, "prescale": prescale, "postscale": postscale}
    return compressed.compressed_call(FRONT, session, compression, tensors, outputs, names, options, group)


def gather_member(
    session: Session, group: int, name: str, tensor: torch.Tensor, taken: Callable[[Received], Any] | None = None
) -> Member:
    """Return a member that gathers a tensor. Its result is a `Received`, or the result of `taken` for it."""
    return calls.member(session, group, name, FRONT, ALLGATHER, tensor, None, {}, global_process_set, taken)


def call_of_several(session: Session, members: Sequence[Member]) -> Call:
    """Return a call of several members, whose result is the tuple of theirs."""
    return calls.call_of_members(session, FRONT, members)

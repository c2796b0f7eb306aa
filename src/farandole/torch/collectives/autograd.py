"""Collectives as nodes of autograd's graph. `farandole.worker.collectives` declares their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from farandole.worker.collectives.differentiation import DifferentiableCall


def differentiate(call: DifferentiableCall, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Run a call so that gradients flow through it, and return its outputs."""
    outputs: tuple[torch.Tensor, ...] = _Collective.apply(call, *tensors)
    return outputs


class _Collective(torch.autograd.Function):
    """One call. Its backward pass also calls collectives, on every rank."""

    @staticmethod
    def forward(call: DifferentiableCall, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return call.run(tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        ctx.call, *tensors = inputs
        if ctx.call.needs_inputs:
            ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        # Read only if something was saved: PyTorch refuses it in a second backward pass, even if nothing was.
        inputs = ctx.saved_tensors if ctx.call.needs_inputs else ()
        contiguous = [gradient.contiguous() for gradient in gradients]
        return (None, *ctx.call.gradients(_Maths(ctx.call), inputs, contiguous))


class _Maths:
    """PyTorch's operations for gradient rules: a `farandole.worker.collectives.gradient_rules.Maths`."""

    def __init__(self, call: DifferentiableCall) -> None:
        self.reduce = call.reduce
        self._rank = call.process_set.ranks[call.process_set.rank()]

    def equal(self, tensor: torch.Tensor, other: torch.Tensor | float) -> torch.Tensor:
        return (tensor == other).to(tensor.dtype)

    def where(self, flags: torch.Tensor, then: torch.Tensor | float, otherwise: torch.Tensor | float) -> torch.Tensor:
        return torch.where(flags != 0, then, otherwise)

    def scaled(self, tensor: torch.Tensor, factor: float, ranks: int) -> torch.Tensor:
        return tensor if factor * ranks == 1.0 else tensor * (factor * ranks)

    def only_at(self, tensor: torch.Tensor, rank: int) -> torch.Tensor:
        if rank == self._rank:
            return tensor
        return tensor.masked_fill(torch.ones((), dtype=torch.bool, device=tensor.device), 0)

    def rows_of(self, tensor: torch.Tensor, counts: Sequence[int], position: int) -> torch.Tensor:
        begin = sum(counts[:position])
        return tensor[begin : begin + counts[position]]

    def padded(self, tensor: torch.Tensor, rows: int) -> torch.Tensor:
        missing = rows - tensor.shape[0]
        return self.with_zero_rows(tensor, 0, missing) if missing else tensor

    def product_of_rows(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.prod(0)

    def with_zero_rows(self, tensor: torch.Tensor, before: int, after: int) -> torch.Tensor:
        zeros = [tensor.new_zeros((count, *tensor.shape[1:])) for count in (before, after)]
        return torch.cat([zeros[0], tensor, zeros[1]])

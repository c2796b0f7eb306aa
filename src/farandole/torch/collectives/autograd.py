"""Collectives as nodes of autograd's graph. What their gradients are is in `farandole.collectives`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from farandole.collectives.differentiation import DifferentiableCall


def differentiate(call: DifferentiableCall, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Run a call so that gradients flow through it, and return its outputs."""
    outputs: tuple[torch.Tensor, ...] = _Collective.apply(call, *tensors)
    return outputs


class _Collective(torch.autograd.Function):
    """One call. Its backward pass is collectives again, which run on every rank."""

    @staticmethod
    def forward(ctx: Any, call: DifferentiableCall, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.call = call
        if call.needs_inputs:
            ctx.save_for_backward(*tensors)
        return call.run(tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        inputs = [tensor.detach() for tensor in ctx.saved_tensors]
        contiguous = [gradient.contiguous() for gradient in gradients]
        return (None, *ctx.call.gradients(_Maths(ctx.call), inputs, contiguous))


class _Maths:
    """What gradient rules need of PyTorch; see `farandole.collectives.gradient_rules.Maths`."""

    def __init__(self, call: DifferentiableCall) -> None:
        self.reduce = call.reduce

    def equal(self, tensor: torch.Tensor, other: torch.Tensor | float) -> torch.Tensor:
        return (tensor == other).to(tensor.dtype)

    def where(self, flags: torch.Tensor, then: torch.Tensor | float, otherwise: torch.Tensor | float) -> torch.Tensor:
        return torch.where(flags != 0, then, otherwise)

    def zeros_like(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(tensor)

    def with_zero_rows(self, tensor: torch.Tensor, count: int) -> torch.Tensor:
        return torch.cat([tensor, tensor.new_zeros((count, *tensor.shape[1:]))])

"""Tensors of a GPU in objects that are sent to other workers: they arrive on the current GPU of the receiver."""

from __future__ import annotations

from typing import Any

import torch

from farandole.base import portable
from farandole.torch.skeleton import is_available


def _reduce(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    device = tensor.device.type
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    if device in ("cpu", "meta") or not is_plain:
        return None
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    return _restored, (tensor.detach().cpu(), device, is_parameter, tensor.requires_grad and tensor.is_leaf)


def _restored(values: torch.Tensor, device: str, is_parameter: bool, requires_grad: bool) -> torch.Tensor:
    tensor = values.to(device) if is_available(device) else values
    return torch.nn.Parameter(tensor, requires_grad) if is_parameter else tensor.requires_grad_(requires_grad)


portable.register(torch.Tensor, _reduce)

"""The compressions for PyTorch. Their common parts are in `farandole.worker.collectives.compression`."""

from __future__ import annotations

from typing import Any

import torch

from farandole.worker.collectives.compression import Compressor, Feedback, Int8, NoneCompressor, PowerSGD, Recipe, TopK

__all__ = [
    "BF16Compressor",
    "Compression",
    "Compressor",
    "FP16Compressor",
    "Feedback",
    "Int8",
    "NoneCompressor",
    "PowerSGD",
    "Recipe",
    "TopK",
]


class _CastCompressor(Compressor):
    """Sends floating-point tensors in a smaller type, and other tensors unchanged."""

    wire_dtype: torch.dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return the tensor in the smaller type, and its original type."""
        return (tensor.to(cls.wire_dtype) if tensor.dtype.is_floating_point else tensor), tensor.dtype

    @classmethod
    def decompress(cls, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Return the tensor in its original type."""
        return tensor.to(ctx)


class FP16Compressor(_CastCompressor):
    """Sends floating-point tensors as float16: 11 bits of precision, at most 65504.

    Sums are computed in float32, so an average of values in the range is in the range. A value or a sum beyond 65504
    arrives as infinity, which a gradient scaler detects; without such a check, use `bf16`.
    """

    wire_dtype = torch.float16


class BF16Compressor(_CastCompressor):
    """Sends floating-point tensors as bfloat16: 8 bits of precision, the range of float32."""

    wire_dtype = torch.bfloat16


class Compression:
    """The compressions that come with farandole."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    int8 = Int8()
    topk = TopK
    powersgd = PowerSGD

"""What is done to a tensor before it travels, and undone after."""

from __future__ import annotations

from typing import Any

import torch


class Compressor:
    """The interface of a compression; a subclass is accepted wherever `compression=` is."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return what travels, and what `decompress` will need."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Return the tensor as it was before `compress`, but for precision."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Tensors travel as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return the tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Return the tensor itself."""
        return tensor


class _CastCompressor(Compressor):
    """Floating-point tensors travel in a smaller type; others as they are."""

    wire_dtype: torch.dtype

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return the tensor in the smaller type, and the type it had."""
        return (tensor.to(cls.wire_dtype) if tensor.dtype.is_floating_point else tensor), tensor.dtype

    @classmethod
    def decompress(cls, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Return the tensor in the type it had."""
        return tensor.to(ctx)


class FP16Compressor(_CastCompressor):
    """Floating-point tensors travel as float16: 11 bits of precision, at most 65504.

    Sums are added up in float32, so an average of what fits does fit. A value or a sum beyond 65504 arrives as
    infinity, which a gradient scaler sees; where nothing looks for it, take `bf16`.
    """

    wire_dtype = torch.float16


class BF16Compressor(_CastCompressor):
    """Floating-point tensors travel as bfloat16: 8 bits of precision, the range of float32."""

    wire_dtype = torch.bfloat16


class Compression:
    """The compressions that come with farandole."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor

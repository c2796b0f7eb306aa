"""The compressions for JAX. docs/how-to/compression.md describes them."""

from __future__ import annotations

from typing import Any, ClassVar

import jax.numpy as jnp

from farandole.worker.collectives.compression import Compressor, Int8, NoneCompressor, TopK, WithoutPowerSGD


class _CastCompressor(Compressor):
    """Sends floating-point arrays in a smaller type, and other arrays unchanged."""

    wire_dtype: ClassVar[Any]

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """Return the array in the smaller type, and its original type."""
        tensor = jnp.asarray(tensor)
        is_floating = jnp.issubdtype(tensor.dtype, jnp.floating)
        return (tensor.astype(cls.wire_dtype) if is_floating else tensor), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        """Return the array in its original type."""
        return tensor.astype(ctx)


class FP16Compressor(_CastCompressor):
    """Sends floating-point arrays as float16: 11 bits of precision, at most 65504."""

    wire_dtype = jnp.float16


class BF16Compressor(_CastCompressor):
    """Sends floating-point arrays as bfloat16: 8 bits of precision, the range of float32."""

    wire_dtype = jnp.bfloat16


class Compression(metaclass=WithoutPowerSGD):
    """The compressions that come with farandole, except PowerSGD."""

    none: ClassVar[type[Compressor]] = NoneCompressor
    fp16: ClassVar[type[Compressor]] = FP16Compressor
    bf16: ClassVar[type[Compressor]] = BF16Compressor
    int8: ClassVar[Int8] = Int8()
    topk: ClassVar[type[TopK]] = TopK

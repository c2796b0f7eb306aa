"""The compressions for TensorFlow. docs/how-to/compression.md describes them."""

from __future__ import annotations

from typing import Any, ClassVar

import tensorflow as tf

from farandole.worker.collectives.compression import Compressor, NoneCompressor


class _CastCompressor(Compressor):
    """Sends floating-point tensors in a smaller type, and other tensors unchanged."""

    wire_dtype: tf.DType

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """Return the tensor in the smaller type, and its original type."""
        return (tf.cast(tensor, cls.wire_dtype) if tensor.dtype.is_floating else tensor), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        """Return the tensor in its original type."""
        return tensor if tensor.dtype == ctx else tf.cast(tensor, ctx)


class FP16Compressor(_CastCompressor):
    """Sends floating-point tensors as float16: 11 bits of precision, at most 65504."""

    wire_dtype = tf.float16


class BF16Compressor(_CastCompressor):
    """Sends floating-point tensors as bfloat16: 8 bits of precision, the range of float32."""

    wire_dtype = tf.bfloat16


class Compression:
    """The compressions that `farandole.tensorflow` has."""

    none: ClassVar[type[Compressor]] = NoneCompressor
    fp16: ClassVar[type[Compressor]] = FP16Compressor
    bf16: ClassVar[type[Compressor]] = BF16Compressor

"""The compressions for NumPy. docs/how-to/compression.md describes them."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from farandole.errors import InvalidRequestError
from farandole.numpy.arrays import Array
from farandole.worker.collectives.compression import Compressor, Int8, NoneCompressor, TopK, WithoutPowerSGD


class _CastCompressor(Compressor):
    """Sends floating-point arrays in a smaller type, and other arrays unchanged."""

    @classmethod
    def wire_dtype(cls) -> np.dtype[Any]:
        """Return the smaller type."""
        raise NotImplementedError

    @classmethod
    def compress(cls, tensor: Array) -> tuple[Array, Any]:
        """Return the array in the smaller type, and its original type."""
        is_floating = tensor.dtype.kind == "f" or tensor.dtype.name == "bfloat16"
        return (tensor.astype(cls.wire_dtype()) if is_floating else tensor), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Array, ctx: Any) -> Array:
        """Return the array in its original type."""
        return tensor.astype(ctx, copy=False)


class FP16Compressor(_CastCompressor):
    """Sends floating-point arrays as float16: 11 bits of precision, at most 65504."""

    @classmethod
    def wire_dtype(cls) -> np.dtype[Any]:
        """Return float16."""
        return np.dtype(np.float16)


class BF16Compressor(_CastCompressor):
    """Sends floating-point arrays as bfloat16: 8 bits of precision, the range of float32. It needs `ml_dtypes`."""

    @classmethod
    def wire_dtype(cls) -> np.dtype[Any]:
        """Return bfloat16.

        Raises:
            ValueError: NumPy has no such type, because `ml_dtypes` is not installed.
        """
        try:
            import ml_dtypes
        except ImportError:
            raise InvalidRequestError(
                "Compression.bf16 needs the element type bfloat16, which NumPy has from ml_dtypes: pip install "
                "ml_dtypes, or use Compression.fp16."
            ) from None
        dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return dtype


class Compression(metaclass=WithoutPowerSGD):
    """The compressions that come with farandole, except PowerSGD, which needs a framework's matrix products."""

    none: ClassVar[type[Compressor]] = NoneCompressor
    fp16: ClassVar[type[Compressor]] = FP16Compressor
    bf16: ClassVar[type[Compressor]] = BF16Compressor
    int8: ClassVar[Int8] = Int8()
    topk: ClassVar[type[TopK]] = TopK

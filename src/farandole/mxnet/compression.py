"""The compressions for MXNet. docs/how-to/compression.md describes them."""

from __future__ import annotations

from typing import Any, ClassVar

import mxnet as mx
import numpy as np

from farandole.worker.collectives.compression import Compressor, Int8, NoneCompressor, TopK


class FP16Compressor(Compressor):
    """Sends floating-point arrays as float16: 11 bits of precision, at most 65504."""

    @staticmethod
    def compress(tensor: mx.nd.NDArray) -> tuple[mx.nd.NDArray, Any]:
        """Return the array in the smaller type, and its original type."""
        is_floating = np.dtype(tensor.dtype).kind == "f"
        return (tensor.astype("float16", copy=False) if is_floating else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: mx.nd.NDArray, ctx: Any) -> mx.nd.NDArray:
        """Return the array in its original type."""
        return tensor.astype(ctx, copy=False)


class Compression:
    """The compressions that `farandole.mxnet` has."""

    none: ClassVar[type[Compressor]] = NoneCompressor
    fp16: ClassVar[type[Compressor]] = FP16Compressor
    int8: ClassVar[Int8] = Int8()
    topk: ClassVar[type[TopK]] = TopK

"""Numbers of the C ABI that users and front ends see: element types, and operations."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class DType(IntEnum):
    """Element types (`enum farandole_dtype`)."""

    U8 = 0
    I8 = 1
    I16 = 3
    I32 = 4
    I64 = 5
    F16 = 6
    F32 = 7
    F64 = 8
    BOOL = 9
    BF16 = 10


# Bytes of an element.
SIZES = {
    DType.U8: 1,
    DType.I8: 1,
    DType.I16: 2,
    DType.I32: 4,
    DType.I64: 8,
    DType.F16: 2,
    DType.F32: 4,
    DType.F64: 8,
    DType.BOOL: 1,
    DType.BF16: 2,
}


class OpaqueType(NamedTuple):
    """An element type that the engine moves as bytes, without calculating with it."""

    name: str
    """NumPy's name, such as "uint32". Ranks whose names or sizes differ have different types."""
    size: int
    """Size of an element in bytes; at least 1."""


ElementType = DType | OpaqueType


class WireForm(IntEnum):
    """The form in which the tensors of an allreduce are sent (`enum farandole_compression`)."""

    NONE = 0
    INT8 = 1
    TOPK = 2


# Plain integers, as Horovod's: scripts compare, print and store them.
Average = 0
"""The sum of all ranks' tensors, divided by their number."""
Sum = 1
"""The sum of all ranks' tensors."""
Adasum = 2
"""The sum of the parts in which the ranks' tensors differ, and the average of the parts that they share; for floating
point."""
Min = 3
"""The minimum of all ranks' elements."""
Max = 4
"""The maximum of all ranks' elements."""
Product = 5
"""The product of all ranks' elements."""

OPS = (Average, Sum, Adasum, Min, Max, Product)

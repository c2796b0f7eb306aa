"""Numbers of the C ABI that users and front ends see: element types, operations, kinds of request."""

from __future__ import annotations

from enum import IntEnum


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


class Kind(IntEnum):
    """Kinds of request (`enum farandole_kind`)."""

    ALLREDUCE = 0
    ALLGATHER = 1
    BROADCAST = 2
    BARRIER = 3
    ADD_GROUP = 4
    REMOVE_GROUP = 5
    ALLTOALL = 6
    REDUCESCATTER = 7
    JOIN = 8
    TRANSFER = 9


class WireForm(IntEnum):
    """How the tensors of an allreduce are sent (`enum farandole_compression`)."""

    NONE = 0
    INT8 = 1
    TOPK = 2


# Plain integers, as Horovod's: scripts compare, print and store them.
Average = 0
Sum = 1
Adasum = 2
Min = 3
Max = 4
Product = 5

OPS = (Average, Sum, Adasum, Min, Max, Product)

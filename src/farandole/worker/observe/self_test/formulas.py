"""The inputs of the self test's collectives and their expected results, by formula.

Values repeat with a period of seven elements, so that megabytes are generated and compared quickly, and missing,
duplicate or misplaced data is detected. All values are integers that the element type represents exactly, so the order
of additions does not matter, and only averages are rounded.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Sequence

from farandole.worker.core.dtype import Average, DType, Max, Min, Product, Sum

PERIOD = 7

_FORMATS = {DType.U8: "B", DType.I32: "i", DType.I64: "q", DType.F16: "e", DType.F32: "f", DType.F64: "d"}
# The largest whole number up to which the type holds all.
_LARGEST = {
    DType.U8: 2**8 - 1,
    DType.I32: 2**31 - 1,
    DType.I64: 2**63 - 1,
    DType.F16: 2**11,
    DType.BF16: 2**8,
    DType.F32: 2**24,
    DType.F64: 2**53,
}
# How far an average may be off, as a part of it. Those of whole numbers are exact.
_ROUNDING = {DType.F16: 2.0**-10, DType.BF16: 2.0**-7, DType.F32: 2.0**-22, DType.F64: 2.0**-51}

DTYPES = tuple(_LARGEST)
OPS = {"sum": Sum, "average": Average, "min": Min, "max": Max, "product": Product}

Number = int | float
Bytes = bytes | bytearray


def element_bytes(dtype: DType) -> int:
    """Return the size of an element."""
    return 2 if dtype == DType.BF16 else struct.calcsize(_FORMATS[dtype])


def contribution(op: int, rank: int) -> list[int]:
    """Return the input of a rank: one period."""
    if op == Product:
        return [2 if rank == position else 1 for position in range(PERIOD)]
    if op in (Min, Max):
        return [(position + rank) % PERIOD for position in range(PERIOD)]
    return [(position + rank) % 3 for position in range(PERIOD)]


def can_be_asked(op: int, dtype: DType, size: int) -> bool:
    """Return whether the type can represent every result for this number of ranks."""
    return op not in (Sum, Average) or 2 * size <= _LARGEST[dtype]


def reduced(op: int, dtype: DType, size: int) -> list[Number]:
    """Return the expected result of a reduction over this number of ranks: one period."""
    columns = list(zip(*(contribution(op, rank) for rank in range(size)), strict=True))
    if op == Average and dtype in _ROUNDING:
        return [sum(column) / size for column in columns]
    if op == Average:
        return [sum(column) // size for column in columns]
    folds: dict[int, Callable[[Iterable[int]], int]] = {Sum: sum, Min: min, Max: max, Product: math.prod}
    return [folds[op](column) for column in columns]


def tiled(period: bytes, size: int) -> bytearray:
    """Return a number of bytes in which a period is repeated."""
    return bytearray((period * (size // len(period) + 1))[:size])


def encode(values: Sequence[Number], dtype: DType) -> bytes:
    """Return values as elements."""
    if dtype == DType.BF16:
        # The upper half of a float32, whose lower half is zero for what bfloat16 holds exactly.
        return b"".join(struct.pack("<f", value)[2:] for value in values)
    return struct.pack(f"{len(values)}{_FORMATS[dtype]}", *values)


def decode(elements: Bytes, dtype: DType) -> list[Number]:
    """Return elements as values."""
    count = len(elements) // element_bytes(dtype)
    if dtype == DType.BF16:
        halves = (elements[2 * place : 2 * place + 2] for place in range(count))
        return [struct.unpack("<f", b"\0\0" + half)[0] for half in halves]
    return list(struct.unpack(f"{count}{_FORMATS[dtype]}", elements))


def what_differs(found: Bytes, wanted: Sequence[Number], dtype: DType, first: int = 0) -> str:
    """Compare elements with a repeated period of values.

    Args:
        found: the elements.
        wanted: the values of one period.
        dtype: the element type.
        first: the first element's position in the period.

    Returns:
        Which element is wrong; "" if none is.
    """
    grain = element_bytes(dtype)
    head = decode(found[: PERIOD * grain], dtype)
    for place, value in enumerate(head):
        right = wanted[(first + place) % PERIOD]
        if not math.isclose(value, right, rel_tol=_ROUNDING.get(dtype, 0.0)):
            return f"element {place} is {value:g}, not {right:g}"
    shift = PERIOD * grain
    if found[shift:] == found[:-shift]:
        return ""
    ends = range(shift + grain, len(found) + grain, grain)
    end = next(end for end in ends if found[end - grain : end] != found[end - grain - shift : end - shift])
    (value,), right = decode(found[end - grain : end], dtype), wanted[(first + end // grain - 1) % PERIOD]
    return f"element {end // grain - 1} is {value:g}, not {right:g}"


def bytes_of(source: int, destination: int, size: int) -> bytearray:
    """Return the bytes that one rank sends to another, or to all (any `destination`), in a collective without
    arithmetic.
    """
    return tiled(bytes((11 * source + 5 * destination + place) % 251 for place in range(251)), size)


def which_byte_differs(found: Bytes, wanted: Bytes) -> str:
    """Compare bytes; return a description of the first wrong one, or ""."""
    if found == wanted:
        return ""
    if len(found) != len(wanted):
        return f"{len(found)} bytes came, not {len(wanted)}"
    place = next(place for place, (one, other) in enumerate(zip(found, wanted, strict=True)) if one != other)
    return f"byte {place} is {found[place]}, not {wanted[place]}"

"""The expected results of collectives, computed by NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from frontends import DTYPES

INTEGERS = ["uint8", "int8", "int16", "int32", "int64"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]
# Relative to the largest value; sums of up to four numbers, accumulated in at least 32 bits and rounded once.
TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 1e-6, "float64": 1e-14}


def values(rank: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return a rank's input: small numbers, different on every rank, exact in every type."""
    count = int(np.prod(shape))
    whole = (np.arange(count) * 7 + rank * 3) % 5 - (0 if dtype in ("uint8", "bool") else 2)
    if dtype in FLOATS:
        return (whole / 4 + 1).astype(DTYPES[dtype]).reshape(shape)
    return whole.astype(DTYPES[dtype]).reshape(shape)


def reduced(inputs: list[np.ndarray], op: str, dtype: str, prescale: float = 1.0, postscale: float = 1.0) -> np.ndarray:
    """Return the reduction of one array from each rank, in a wide type."""
    stacked = np.stack(inputs)
    if dtype == "bool":
        # As in numpy: a sum is "or", a product is "and".
        return {"Sum": stacked.any, "Max": stacked.any, "Min": stacked.all, "Product": stacked.all}[op](0)
    whole = dtype in INTEGERS
    wide = stacked.astype(np.int64 if whole else np.float64)
    wide = _scaled(wide, prescale, whole)
    if op == "Average":
        total = wide.sum(0) / len(inputs)
        return _scaled(np.trunc(total).astype(np.int64) if whole else total, postscale, whole)
    total = {"Sum": wide.sum, "Min": wide.min, "Max": wide.max, "Product": wide.prod}[op](0)
    return _scaled(total, postscale, whole)


def _scaled(array: np.ndarray, factor: float, whole: bool) -> np.ndarray:
    return np.trunc(array * factor).astype(np.int64) if whole else array * factor


def scattered_rows(rows: int, size: int) -> list[slice]:
    """Return the rows that each rank gets from a reducescatter: if they cannot be divided equally, the first ranks get
    one more.
    """
    counts = [rows // size + (rank < rows % size) for rank in range(size)]
    ends = np.cumsum(counts)
    return [slice(end - count, end) for end, count in zip(ends.tolist(), counts, strict=True)]


def check(actual: Any, wanted: np.ndarray, dtype: str, tolerance: float = 1.0) -> None:
    """Compare shape and values; floats within the precision of their type, times `tolerance`."""
    assert actual.shape == wanted.shape, (actual.shape, wanted.shape)
    if dtype in FLOATS:
        allowed = TOLERANCE[dtype] * tolerance
        np.testing.assert_allclose(actual.astype(np.float64), wanted, rtol=allowed, atol=allowed)
    else:
        np.testing.assert_array_equal(actual, wanted.astype(DTYPES[dtype]))


def adasum(inputs: list[np.ndarray]) -> np.ndarray:
    """Return the adaptive sum of one vector from each rank, in float64.

    If the number of ranks is not a power of two, the first pairs are combined beforehand: with five ranks, ranks 0 and
    1.
    """
    vectors = [array.astype(np.float64) for array in inputs]
    leaves = 1 << (len(vectors).bit_length() - 1)
    folded = len(vectors) - leaves
    vectors = [_adaptive(*vectors[2 * pair : 2 * pair + 2]) for pair in range(folded)] + vectors[2 * folded :]
    while len(vectors) > 1:
        vectors = [_adaptive(*vectors[pair : pair + 2]) for pair in range(0, len(vectors), 2)]
    return vectors[0]


def _adaptive(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    dot = float((a * b).sum())

    def factor(vector: np.ndarray) -> float:
        square = float((vector * vector).sum())
        return 1.0 if square < np.sqrt(np.finfo(np.float64).tiny) else 1.0 - dot / (2 * square)

    return factor(a) * a + factor(b) * b

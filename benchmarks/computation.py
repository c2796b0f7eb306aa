"""The computation of a core between two gradients, the same in all peers."""

from __future__ import annotations

from functools import cache
from typing import Any

# 2 x 192^3 = 14 million operations, about 0.3 ms of one core: roughly what ResNet-50 does for one gradient of one small
# picture.
_WIDTH = 192


def compute(units: int) -> None:
    """Multiply matrices `units` times."""
    if units:
        left, right, product = _matrices()
        for _ in range(units):
            left.dot(right, out=product)


@cache
def _matrices() -> tuple[Any, Any, Any]:
    import numpy

    return tuple(numpy.ones((_WIDTH, _WIDTH), dtype=numpy.float32) for _ in range(3))

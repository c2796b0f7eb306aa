"""Numbers of things and sizes, as people write them."""

from __future__ import annotations

SIZE_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
"""Bytes in a size that is written with such a letter."""


def count(number: int, noun: str) -> str:
    """Write a number of things, such as `1 worker` or `2 workers`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

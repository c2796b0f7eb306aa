"""A shuffled order, any part of which can be computed without the rest.

Workers that join in the middle of an epoch need the order from there on, at once, however many samples there are. A
shuffled list would have to be made completely, on all of them. This is a keyed permutation instead: a Feistel network
over the smallest power of two that covers all positions, applied until the result is below their number (*cycle
walking*; Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). The keys come from the seed and the epoch
by splitmix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014).

Checkpoints depend on the order: it is the same on all machines and in all versions, and must never change.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

_64_BITS = (1 << 64) - 1
_GOLDEN_RATIO = 0x9E3779B97F4A7C15
FIRST_MULTIPLIER = 0xBF58476D1CE4E5B9
SECOND_MULTIPLIER = 0x94D049BB133111EB

# Each round changes both halves once. With two, the results of neighbours are still related; a fourth changes nothing.
_DOUBLE_ROUNDS = 3

# Halves of fewer bits than three have too few functions to choose from: some orders of few samples would be rare.
_LEAST_BITS = 6

_MOST_POSITIONS = 1 << 63


class Permutation:
    """A pseudo-random order of the numbers 0 to `size` - 1.

    Args:
        size: the number of positions, up to 2**63.
        seed: a number that determines the order. Only its lower 64 bits are used.
        epoch: the epoch: each has another order.

    Raises:
        ValueError: the size is negative or too large.

    Example:
        >>> Permutation(10, seed=1, epoch=0).indices(0, 10)
        [6, 4, 8, 7, 9, 3, 5, 2, 0, 1]
    """

    __slots__ = ("keys", "left_bits", "right_bits", "size")

    def __init__(self, size: int, seed: int, epoch: int) -> None:
        if not 0 <= size <= _MOST_POSITIONS:
            raise ValueError(f"there can be 0 to 2**63 positions, but not {size}.")
        self.size = size
        bits = max((size - 1).bit_length(), _LEAST_BITS)
        self.left_bits = bits // 2
        self.right_bits = bits - self.left_bits
        self.keys = _keys(seed, epoch)

    def index(self, position: int) -> int:
        """Return the number at a position."""
        return self.indices(position, position + 1)[0]

    def indices(self, begin: int, end: int) -> list[int]:
        """Return the numbers at the positions from `begin` up to, but not including, `end`.

        Raises:
            IndexError: there are no such positions.
        """
        if not 0 <= begin <= end <= self.size:
            raise IndexError(f"positions {begin} to {end} are outside an order of {self.size}.")
        return self.walked(range(begin, end))

    def walked(self, numbers: Iterable[int]) -> list[int]:
        """Return the end of the cycle walk from each of some numbers below the network's power of two."""
        # One loop with everything in local variables: a call for each number would take half of the time.
        size, keys, right_bits = self.size, self.keys, self.right_bits
        left_mask, right_mask = (1 << self.left_bits) - 1, (1 << right_bits) - 1
        found = []
        for number in numbers:
            while True:
                left, right = number >> right_bits, number & right_mask
                for left_key, right_key in keys:
                    mixed = (right ^ left_key) * FIRST_MULTIPLIER
                    left ^= (mixed ^ mixed >> 32) * SECOND_MULTIPLIER >> 32 & left_mask
                    mixed = (left ^ right_key) * FIRST_MULTIPLIER
                    right ^= (mixed ^ mixed >> 32) * SECOND_MULTIPLIER >> 32 & right_mask
                number = left << right_bits | right
                if number < size:
                    break
            found.append(number)
        return found


@functools.lru_cache(maxsize=16)
def permutation(size: int, seed: int, epoch: int) -> Permutation:
    """Return a permutation, cached if it was requested recently, because computing its keys takes time."""
    return Permutation(size, seed, epoch)


def _keys(seed: int, epoch: int) -> tuple[tuple[int, int], ...]:
    """Return the keys of each double round, for the left and for the right half."""
    state = _mixed(_mixed(seed & _64_BITS) + epoch * _GOLDEN_RATIO & _64_BITS)
    keys = [_mixed(state + number * _GOLDEN_RATIO & _64_BITS) for number in range(1, 2 * _DOUBLE_ROUNDS + 1)]
    return tuple(zip(keys[::2], keys[1::2], strict=True))


def _mixed(value: int) -> int:
    """Return the output function of splitmix64: every bit of `value` changes about half of the result's."""
    value = (value ^ value >> 30) * FIRST_MULTIPLIER & _64_BITS
    value = (value ^ value >> 27) * SECOND_MULTIPLIER & _64_BITS
    return value ^ value >> 31

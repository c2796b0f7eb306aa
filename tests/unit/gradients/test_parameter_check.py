"""The arithmetic of comparing the ranks' parameters."""

from __future__ import annotations

import random

from farandole.worker.gradients.parameter_check import are_equal, digest_of


def compared(digests: list[int]) -> bool:
    """Return what the ranks find that have these digests; None is a rank that has joined."""
    return are_equal(len(digests), sum(digests), sum(digest * digest for digest in digests))


def test_only_equal_digests_are_equal() -> None:
    numbers = random.Random(1)
    for _ in range(1000):
        size = numbers.randrange(2, 100)
        digest = numbers.randrange(1 << 24)
        assert compared([digest] * size)
        other = [digest] * size
        other[numbers.randrange(size)] = (digest + numbers.choice([1, 2, 1 << 23])) % (1 << 24)
        assert not compared(other)


def test_all_ranks_may_have_the_largest_digest() -> None:
    largest = (1 << 24) - 1
    assert (1 << 15) * largest**2 < 1 << 63
    assert compared([largest] * (1 << 15))


def test_a_digest_depends_on_each_number_and_their_order() -> None:
    assert 0 <= digest_of([1, -(1 << 63), (1 << 63) - 1]) < 1 << 24
    assert len({digest_of(numbers) for numbers in ([], [0], [0, 0], [0, 1], [1, 0], [-1, 1])}) == 6

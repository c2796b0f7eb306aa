"""The shuffled order: complete, the same for ever, and shuffled."""

import doctest
import itertools
import math

import pytest

from farandole.worker.elastic import permutation as module
from farandole.worker.elastic.permutation import Permutation


@pytest.mark.parametrize("size", [*range(70), 127, 128, 129, 1000, 4096, 4097])
def test_every_number_stands_at_one_position(size: int) -> None:
    assert sorted(Permutation(size, seed=3, epoch=5).indices(0, size)) == list(range(size))


@pytest.mark.parametrize(
    ("size", "seed", "epoch", "position", "numbers"),
    [
        (10, 0, 0, 0, [2, 6, 3, 0, 1, 8, 9, 5, 7, 4]),
        (10, 1, 0, 0, [6, 4, 8, 7, 9, 3, 5, 2, 0, 1]),
        (1000, 42, 7, 500, [870, 853, 183, 79, 947, 767]),
        (1_281_167, 2**64 - 1, 89, 1_281_160, [716976, 199276, 791620, 1154534, 655661, 212568, 1279350]),
        (2**40 + 1, -1, 0, 2**39, [764512164096, 629933170988, 907770812534]),
        (2**63, 5, 1, 2**62, [2586856162273735847, 1764857084312584651]),
    ],
)
def test_the_order_is_the_same_for_ever(size: int, seed: int, epoch: int, position: int, numbers: list[int]) -> None:
    """A checkpoint says only how far an order is used up: another order would repeat some samples and skip others."""
    assert Permutation(size, seed, epoch).indices(position, position + len(numbers)) == numbers


def test_any_part_can_be_had_alone() -> None:
    order = Permutation(1000, seed=1, epoch=2)
    everything = order.indices(0, 1000)
    assert [order.index(position) for position in range(1000)] == everything
    assert order.indices(313, 717) == everything[313:717]
    assert order.indices(1000, 1000) == []


@pytest.mark.parametrize("part", [(-1, 3), (3, 2), (5, 11), (11, 11)])
def test_positions_outside_are_refused(part: tuple[int, int]) -> None:
    with pytest.raises(IndexError, match="outside an order of 10"):
        Permutation(10, seed=0, epoch=0).indices(*part)


@pytest.mark.parametrize("size", [-1, 2**63 + 1])
def test_a_size_that_cannot_be_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"but not {size}"):
        Permutation(size, seed=0, epoch=0)


def test_other_epochs_and_seeds_have_other_orders() -> None:
    orders = [Permutation(1000, seed, epoch).indices(0, 1000) for seed in (0, 1, 2, 2**32, 2**63) for epoch in range(4)]
    for number, order in enumerate(orders):
        for other in orders[:number]:
            # Two random orders agree at one position on average; 15 are less likely than one in 10**12.
            assert sum(here == there for here, there in zip(order, other, strict=True)) < 15


@pytest.mark.parametrize("size", [1000, 1024, 1025, 9973])
def test_positions_say_nothing_about_numbers(size: int) -> None:
    numbers = Permutation(size, seed=11, epoch=0).indices(0, size)
    by_position = list(range(size))
    for one, other in ((by_position, numbers), (numbers[:-1], numbers[1:]), (numbers[:-2], numbers[2:])):
        # The correlation of random orders has a standard deviation of 1 / sqrt(size).
        assert abs(correlation(one, other)) < 5 / math.sqrt(size)


@pytest.mark.parametrize("size", [2, 3, 5, 8, 9, 16, 17])
def test_few_samples_come_in_every_order(size: int) -> None:
    """Over many seeds, every number stands at every position, and follows every other one, equally often."""
    seeds = 2000
    at = [[0] * size for _ in range(size)]
    after = [[0] * size for _ in range(size)]
    for seed in range(seeds):
        numbers = Permutation(size, seed, epoch=0).indices(0, size)
        for position, number in enumerate(numbers):
            at[position][number] += 1
        for number, following in itertools.pairwise(numbers):
            after[number][following] += 1
    follows = [after[one][other] for one in range(size) for other in range(size) if one != other]
    assert excess([count for row in at for count in row]) < 5
    assert excess(follows) < 5


def correlation(one: list[int], other: list[int]) -> float:
    """Return Pearson's coefficient."""
    mean_one, mean_other = sum(one) / len(one), sum(other) / len(other)
    covariance = sum((x - mean_one) * (y - mean_other) for x, y in zip(one, other, strict=True))
    return covariance / math.sqrt(sum((x - mean_one) ** 2 for x in one) * sum((y - mean_other) ** 2 for y in other))


def excess(counts: list[int]) -> float:
    """Return by how many standard deviations chi-square is above what chance would give, were all equally likely."""
    expected = sum(counts) / len(counts)
    chi_square = sum((count - expected) ** 2 / expected for count in counts)
    return (chi_square - len(counts)) / math.sqrt(2 * len(counts))


def test_examples_hold() -> None:
    assert doctest.testmod(module).failed == 0

"""Every sample exactly once in an epoch, whatever happens to the workers."""

import doctest
import random
from collections import Counter
from collections.abc import Sequence

import msgspec
import pytest

from farandole.worker.elastic import ledger as module
from farandole.worker.elastic.ledger import UNBOUNDED, Ledger, Share


def positions(share: Share) -> list[int]:
    """Return the positions of a share one by one."""
    return [position for begin, end in share for position in range(begin, end)]


def lengths(shares: Sequence[Share]) -> list[int]:
    return [len(positions(share)) for share in shares]


# --- who reads what ----------------------------------------------------------------------------------------------


def test_ranks_get_consecutive_positions() -> None:
    shares = Ledger(samples=100, cursor=10).take([3, 0, 2])
    assert shares == (((10, 13),), (), ((13, 15),))


def test_what_was_given_back_comes_first() -> None:
    ledger = Ledger(samples=100, cursor=50, returned=((4, 6), (10, 13)))
    assert ledger.left == 55
    assert ledger.take([4, 4]) == (((4, 6), (10, 12)), ((12, 13), (50, 53)))


@pytest.mark.parametrize(
    ("counts", "left", "taken"),
    [
        ([2, 2, 2, 2], 5, [2, 1, 1, 1]),
        ([2, 2, 2, 2], 1, [1, 0, 0, 0]),
        ([4, 4], 7, [4, 3]),
        ([8, 4, 4], 8, [4, 2, 2]),
        ([3, 0, 3], 3, [2, 0, 1]),
        ([2, 2], 4, [2, 2]),
        ([2, 2], 0, [0, 0]),
    ],
)
def test_a_short_step_takes_all_that_is_left_in_proportion(counts: list[int], left: int, taken: list[int]) -> None:
    ledger = Ledger(samples=20, cursor=20 - left)
    shares = ledger.take(counts)
    assert lengths(shares) == taken
    assert ledger.commit(shares).left == 0


def test_a_short_step_is_as_even_as_can_be() -> None:
    chance = random.Random(1)
    for _ in range(2000):
        counts = [chance.randrange(9) for _ in range(chance.randint(1, 9))]
        total = sum(counts)
        if total == 0:
            continue
        left = chance.randint(0, total)
        taken = lengths(Ledger(samples=left).take(counts))
        assert sum(taken) == left
        for count, share in zip(counts, taken, strict=True):
            assert share <= count
            assert abs(share - count * left / total) < 1


@pytest.mark.parametrize("counts", [[], [0, 0], [3, -1]])
def test_counts_that_make_no_step_are_refused(counts: list[int]) -> None:
    with pytest.raises(ValueError, match="a step needs at least one sample"):
        Ledger(samples=10).take(counts)


# --- commit ------------------------------------------------------------------------------------------------------


def test_commit_advances() -> None:
    ledger = Ledger(samples=100, returned=(), cursor=10)
    assert ledger.commit(ledger.take([3, 2])) == Ledger(samples=100, cursor=15)
    assert ledger.cursor == 10


def test_what_lost_ranks_read_is_given_back_sorted_and_merged() -> None:
    ledger = Ledger(samples=100, cursor=50, returned=((4, 6), (10, 13), (20, 30)))
    shares = ledger.take([3, 3, 2])
    assert shares == (((4, 6), (10, 11)), ((11, 13), (20, 21)), ((21, 23),))
    after = ledger.commit(shares, lost=[2, 0, 2])
    assert after.returned == ((4, 6), (10, 11), (21, 30))
    assert after.cursor == 50
    assert after.left == ledger.left - 3


def test_all_ranks_lost_is_a_step_that_never_was() -> None:
    ledger = Ledger(samples=100, cursor=50)
    after = ledger.commit(ledger.take([3, 3]), lost=[0, 1])
    assert after.left == ledger.left
    assert after.take([6]) == (((50, 56),),)


def test_a_step_is_committed_once() -> None:
    ledger = Ledger(samples=100)
    shares = ledger.take([3, 3])
    with pytest.raises(ValueError, match="the ledger that it was taken from"):
        ledger.commit(shares).commit(shares)


@pytest.mark.parametrize("shares", [(((1, 4),),), (((0, 2), (0, 2)),), (((0, 3),), ((3, 11),)), (((0, 2), (3, 4)),)])
def test_shares_that_were_not_next_are_refused(shares: tuple[Share, ...]) -> None:
    with pytest.raises(ValueError, match="next were"):
        Ledger(samples=10).commit(shares)


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_lost_rank_was_there(rank: int) -> None:
    ledger = Ledger(samples=10)
    with pytest.raises(ValueError, match=rf"ranks \[{rank}\] took no part"):
        ledger.commit(ledger.take([1, 1]), lost=[rank])


@pytest.mark.parametrize("seed", range(300))
def test_the_ledger_after_a_step_is_the_same_as_when_it_is_committed(seed: int) -> None:
    chance = random.Random(seed)
    ledger = Ledger(samples=chance.choice([0, 1, 7, 100, 512, UNBOUNDED]), shuffle=False)
    for _ in range(50):
        counts = [chance.randrange(5) for _ in range(chance.randint(1, 6))] + [1]
        shares, after = ledger.step(counts)
        assert shares == ledger.take(counts)
        assert after == ledger.commit(shares)
        ledger = ledger.commit(shares, [rank for rank in range(len(counts)) if chance.random() < 0.3])


# --- ranks that read apart ---------------------------------------------------------------------------------------


def test_each_rank_goes_on_in_a_region_of_its_own() -> None:
    ledger = Ledger(samples=1000, apart=True)
    first = ledger.take([8, 8, 8])
    assert first == (((0, 8),), ((334, 342),), ((667, 675),))
    ledger = ledger.commit(first)
    assert ledger.take([8, 8, 8]) == (((8, 16),), ((342, 350),), ((675, 683),))


def test_what_a_lost_rank_read_is_read_again_and_regions_are_drawn_anew() -> None:
    ledger = Ledger(samples=90, apart=True)
    ledger = ledger.commit(ledger.take([5, 5, 5]), lost=[1])
    assert ledger.left == 80
    assert (ledger.returned, ledger.cursor) == (((5, 60),), 65)
    assert ledger.take([5, 5]) == (((5, 10),), ((45, 50),))


@pytest.mark.parametrize("seed", range(30))
def test_a_rank_reads_few_ranges_while_the_world_stays(seed: int) -> None:
    chance = random.Random(seed)
    counts = [chance.randint(1, 9) for _ in range(chance.randint(1, 6))]
    ledger = Ledger(samples=chance.randint(500, 3000), apart=True)
    ends: list[int] | None = None
    while ledger.left:
        shares, ledger = ledger.step(counts)
        if not all(shares):
            break  # The last step has fewer samples than there are ranks.
        assert all(len(share) == 1 for share in shares)
        begins = [share[0][0] for share in shares]
        assert ends is None or begins == ends
        ends = [share[0][1] for share in shares]
    assert ledger.left == 0


@pytest.mark.parametrize("shares", [(((4, 11),),), (((0, 2), (0, 2)),), (((1, 3), (2, 4)),)])
def test_shares_that_were_not_to_be_read_are_refused(shares: tuple[Share, ...]) -> None:
    with pytest.raises(ValueError, match="the ranges to read were"):
        Ledger(samples=10, apart=True).commit(shares)


@pytest.mark.parametrize("seed", range(100))
def test_ranks_that_read_apart_read_each_sample_once(seed: int) -> None:
    chance = random.Random(seed)
    ledger = Ledger(samples=chance.choice([0, 1, 7, 100, 512]), apart=True, drop_last=chance.random() < 0.2)
    used: Counter[int] = Counter()
    counts = [1]
    while ledger.left and not (ledger.drop_last and ledger.left < sum(counts)):
        shares, after = ledger.step(counts)
        assert after == ledger.commit(shares)
        lost = [rank for rank in range(len(counts)) if chance.random() < 0.1]
        used.update(p for rank, share in enumerate(shares) if rank not in lost for p in positions(share))
        ledger = ledger.commit(shares, lost)
        if chance.random() < 0.2:
            counts = [chance.randrange(5) for _ in range(chance.randint(1, 6))] + [1]
    assert set(used.values()) <= {1}
    assert sum(used.values()) == ledger.samples - ledger.left


# --- a stream ----------------------------------------------------------------------------------------------------


def test_a_stream_goes_on_until_its_end_is_seen() -> None:
    ledger = Ledger(samples=UNBOUNDED, shuffle=False)
    assert ledger.take([4, 4]) == (((0, 4),), ((4, 8),))
    ended = ledger.commit((((0, 4),), ((4, 7),)), lost=[1]).ends_at(7)
    assert ended.left == 3
    assert ended.take([4]) == (((4, 7),),)


# --- the order ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [True, False])
def test_indices_are_those_of_the_positions(shuffle: bool) -> None:
    ledger = Ledger(samples=100, seed=3, epoch=1, shuffle=shuffle)
    everything = [ledger.index(position) for position in range(100)]
    assert sorted(everything) == list(range(100))
    assert (everything == list(range(100))) is not shuffle
    share = ((3, 5), (50, 60))
    assert ledger.indices(share) == [everything[position] for position in positions(share)]


def test_the_next_epoch_begins_anew_in_another_order() -> None:
    ledger = Ledger(samples=100, seed=3, epoch=1, cursor=40, returned=((3, 5),))
    following = ledger.next_epoch()
    assert following == Ledger(samples=100, seed=3, epoch=2)
    assert following.indices(((0, 100),)) != ledger.indices(((0, 100),))
    assert ledger.next_epoch(samples=7).samples == 7


def test_a_ledger_travels() -> None:
    ledger = Ledger(samples=UNBOUNDED, seed=3, epoch=1, cursor=40, returned=((3, 5), (7, 9)), shuffle=False)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(ledger), type=Ledger) == ledger
    assert msgspec.convert(msgspec.to_builtins(ledger), Ledger) == ledger


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({"samples": 10, "cursor": 11}, "cursor at 11"),
        ({"samples": -1}, "-1 samples"),
        ({"samples": 10, "epoch": -1}, "counted from 0"),
        ({"samples": 10, "cursor": 5, "returned": ((3, 6),)}, "before 5"),
        ({"samples": 10, "cursor": 5, "returned": ((3, 4), (1, 2))}, "sorted"),
        ({"samples": 10, "cursor": 5, "returned": ((1, 3), (3, 4))}, "apart"),
        ({"samples": 10, "cursor": 5, "returned": ((3, 3),)}, "sorted"),
    ],
)
def test_a_ledger_that_contradicts_itself_is_refused(contents: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        msgspec.convert(contents, Ledger)


# --- by brute force ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(300))
def test_every_sample_is_used_exactly_once_in_every_epoch(seed: int) -> None:
    """Worlds of changing sizes, with steps that are committed, that lose ranks, and that are aborted."""
    chance = random.Random(seed)
    ledger = Ledger(samples=chance.choice([0, 1, 7, 100, 512, 1000]), seed=seed, shuffle=chance.random() < 0.7)
    for _ in range(3):
        used: Counter[int] = Counter()
        counts = [1]
        while ledger.left:
            if chance.random() < 0.3:
                counts = [chance.randrange(12) for _ in range(chance.randint(1, 8))] + [1]
            shares = ledger.take(counts)
            before = ledger.left
            leaves_one_each = min(counts) > 1 and 0 < before - sum(counts) < len(counts)
            assert sum(lengths(shares)) == (before - len(counts) if leaves_one_each else min(sum(counts), before))
            if chance.random() < 0.2:
                continue  # Aborted: the step left no trace.
            lost = {rank for rank in range(len(counts)) if chance.random() < 0.1}
            read = [share for rank, share in enumerate(shares) if rank not in lost]
            used.update(index for share in read for index in ledger.indices(share))
            ledger = ledger.commit(shares, lost)
            assert ledger.left == before - sum(lengths(read))
        assert used == Counter(range(ledger.samples))
        ledger = ledger.next_epoch()


@pytest.mark.parametrize("ranks", range(1, 9))
@pytest.mark.parametrize("count", [2, 3, 16])
def test_no_rank_goes_without_samples_while_there_is_one_for_each(ranks: int, count: int) -> None:
    for samples in range(ranks, 3 * ranks * count + ranks):
        ledger = Ledger(samples=samples, shuffle=False)
        while ledger.left >= ranks:
            shares = ledger.take([count] * ranks)
            assert min(lengths(shares)) >= 1, (samples, ledger)
            ledger = ledger.commit(shares)
        assert ledger.left == 0


def test_examples_hold() -> None:
    assert doctest.testmod(module).failed == 0

"""The ledger: which samples of the epoch have been used, and which samples each rank reads next.

An epoch has an order of its samples; a *position* is a place in that order. A *range* is the positions from its begin
up to, but not including, its end. A *share* is the ranges that one rank reads in one step. The ledger records the first
position after all that have been read (the *cursor*), and the ranges before it that are still unread: their ranks were
lost, or each rank reads in its own *region*, and the regions of earlier ranks are not finished.

It is a value that is the same on all ranks: the share of each rank is a pure function of the ledger and of the number
of samples that each rank takes. It changes when a step is committed, together with the weights. So every sample is used
exactly once in an epoch, whatever happens to the workers: a step that was not committed has changed neither.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import chain

import msgspec

from farandole.worker.elastic.permutation import permutation

Range = tuple[int, int]
Share = tuple[Range, ...]

UNBOUNDED = (1 << 63) - 1
"""The number of samples of a stream whose end is not known yet."""


class Ledger(msgspec.Struct, frozen=True):
    """The progress through the samples of an epoch.

    Raises:
        ValueError: the fields are inconsistent, such as a cursor after the last sample.

    Example:
        >>> ledger = Ledger(samples=10, shuffle=False)
        >>> shares = ledger.take([4, 4])
        >>> shares
        (((0, 4),), ((4, 8),))
        >>> ledger = ledger.commit(shares, lost=[0])
        >>> ledger.take([4])  # What rank 0 read comes first.
        (((0, 4),),)
        >>> ledger.left
        6
    """

    samples: int
    """The number of samples in the epoch."""
    seed: int = 0
    epoch: int = 0
    """The number of the epoch, from 0."""
    cursor: int = 0
    """The first position after all that committed steps have read."""
    returned: tuple[Range, ...] = ()
    """The positions before the cursor that are unread; sorted, in as few ranges as possible."""
    shuffle: bool = True
    """Whether the order is pseudo-random, determined by (seed, epoch); otherwise it is the dataset's."""
    drop_last: bool = False
    """Whether a short step at the end of the epoch is omitted."""
    apart: bool = False
    """Whether each rank reads in its own region, for samples that are stored in large blocks: otherwise all ranks would
    read every block. A region has samples in proportion to the rank's count, so all regions end together."""

    def __post_init__(self) -> None:
        if not 0 <= self.cursor <= self.samples:
            raise ValueError(f"a ledger of {self.samples} samples cannot have its cursor at {self.cursor}.")
        if self.epoch < 0:
            raise ValueError(f"epochs are counted from 0, but this is {self.epoch}.")
        before = -1
        for begin, end in self.returned:
            if not before < begin < end <= self.cursor:
                raise ValueError(f"ranges given back must be sorted, apart, and before {self.cursor}: {self.returned}.")
            before = end

    @property
    def left(self) -> int:
        """The number of samples of the epoch that have not been read yet."""
        return self.samples - self.cursor + _length(self.returned)

    def take(self, counts: Sequence[int]) -> tuple[Share, ...]:
        """Return the share of each rank in the next step, by rank.

        Returned positions come first, then those after the cursor; ranks get consecutive positions, in rank order. If
        fewer samples are left than requested, this is a *short step*: it takes all of them, as closely in proportion to
        the counts as possible; some ranks may get none. If possible, the step before leaves one for each rank. At the
        end of the epoch, all shares are empty.

        Args:
            counts: the number of samples that each rank takes in a full step.

        Raises:
            ValueError: a count is negative, or all are 0.
        """
        return self.step(counts)[0]

    def step(self, counts: Sequence[int]) -> tuple[tuple[Share, ...], Ledger]:
        """Return the shares of the next step, as `take` does, and the ledger after it if no rank is lost.

        It is for planning many steps ahead, without the cost of `commit`, which goes through all shares again.

        Raises:
            ValueError: a count is negative, or all are 0.
        """
        if min(counts, default=0) < 0 or sum(counts) == 0:
            raise ValueError(f"a step needs at least one sample, and no rank fewer than none; not {tuple(counts)}.")
        rest = self._to_come()
        shares = []
        wanted = min(sum(counts), self.left) if self.drop_last else _wanted(counts, self.left)
        parts = _short(counts, wanted)
        if self.apart:
            regions = _regions(rest, counts)
            # Near the end of the epoch, a region may lack a sample. Then all ranks take the first positions.
            if all(_length(region) >= part for region, part in zip(regions, parts, strict=True)):
                shares = [_split(region, part)[0] for region, part in zip(regions, parts, strict=True)]
                return tuple(shares), self._with_to_come(_without(rest, _merged(chain.from_iterable(shares))))
        for part in parts:
            share, rest = _split(rest, part)
            shares.append(share)
        if self.apart:
            return tuple(shares), self._with_to_come(rest)
        returned = tuple(part for part in rest if part[0] < self.cursor)
        cursor = rest[-1][0] if len(rest) > len(returned) else self.samples
        return tuple(shares), msgspec.structs.replace(self, cursor=cursor, returned=returned)

    def commit(self, shares: Sequence[Share], lost: Collection[int] = ()) -> Ledger:
        """Return the ledger after a step.

        Args:
            shares: the positions that each rank read, as `take` returned them, or fewer if a stream ended in the step.
            lost: the ranks whose gradients are not in the result of the step. Their shares are returned to the ledger.

        Raises:
            ValueError: the shares are not from this ledger, or a lost rank has no share.
        """
        strangers = [rank for rank in lost if not 0 <= rank < len(shares)]
        if strangers:
            raise ValueError(f"ranks {strangers} took no part in a step of {len(shares)} ranks.")
        read = _merged(chain.from_iterable(shares))
        given_back = [part for rank in set(lost) for part in shares[rank]]
        to_come = self._to_come()
        if self.apart:
            rest = _without(to_come, read)
            if _length(rest) + _length(read) != self.left:
                raise ValueError(
                    f"the step read {read}, but the ranges to read were {to_come}: commit a step to the ledger that it "
                    "was taken from."
                )
            return self._with_to_come(_merged([*rest, *given_back]))
        used, rest = _split(to_come, sum(map(_length, shares)))
        if read != _merged(used):
            raise ValueError(
                f"the step read {read}, but next were {_merged(used)}: commit a step to the ledger that it was taken "
                "from."
            )
        returned = [part for part in rest if part[0] < self.cursor] + given_back
        cursor = max([self.cursor, *(end for _, end in used)])
        return msgspec.structs.replace(self, cursor=cursor, returned=_merged(returned))

    def index(self, position: int) -> int:
        """Return the dataset's index of the sample at a position."""
        return self.indices(((position, position + 1),))[0]

    def indices(self, share: Share) -> list[int]:
        """Return the dataset's indices of the samples of a share, in order."""
        if not self.shuffle:
            return [position for begin, end in share for position in range(begin, end)]
        order = permutation(self.samples, self.seed, self.epoch)
        return [index for begin, end in share for index in order.indices(begin, end)]

    def ends_at(self, samples: int) -> Ledger:
        """Return the ledger of the same epoch with the number of samples, when it becomes known."""
        return msgspec.structs.replace(self, samples=samples)

    def next_epoch(self, samples: int | None = None) -> Ledger:
        """Return the ledger at the beginning of the next epoch. The rest of this one is skipped.

        Args:
            samples: the number of samples in the next epoch; None: as many as in this one.
        """
        samples = self.samples if samples is None else samples
        return msgspec.structs.replace(self, samples=samples, epoch=self.epoch + 1, cursor=0, returned=())

    def _to_come(self) -> Share:
        """All unread positions, in the order in which they will be read."""
        return (*self.returned, (self.cursor, self.samples)) if self.cursor < self.samples else self.returned

    def _with_to_come(self, ranges: Share) -> Ledger:
        """Return the ledger with these unread ranges: sorted, and as few as possible."""
        if ranges and ranges[-1][1] == self.samples:
            return msgspec.structs.replace(self, cursor=ranges[-1][0], returned=ranges[:-1])
        return msgspec.structs.replace(self, cursor=self.samples, returned=ranges)


def _wanted(counts: Sequence[int], left: int) -> int:
    """Return the number of samples that the next step takes."""
    total, ranks = sum(counts), len(counts)
    nobody_goes_short = min(counts) >= 2
    return left - ranks if nobody_goes_short and total < left < total + ranks else min(total, left)


def _short(counts: Sequence[int], left: int) -> Sequence[int]:
    """Return the counts, scaled down if there are fewer samples.

    The sum of the counts up to each rank is the proportional sum, rounded up: so no rank is more than one away from its
    proportion, none gets more than its count, and the first ranks get the extra samples.
    """
    total = sum(counts)
    if left >= total:
        return counts
    scaled, asked, given = [], 0, 0
    for count in counts:
        asked += count
        given_now = -(-left * asked // total)
        scaled.append(given_now - given)
        given = given_now
    return scaled


def _regions(ranges: Share, counts: Sequence[int]) -> list[Share]:
    """Return the region of each rank: consecutive parts of the ranges, in proportion to the counts.

    A boundary is a proportion of the samples, rounded up. In a step, the ranks before it take a whole number of samples
    that is the same proportion of the step: so the boundary does not move until the world or the counts change.
    """
    left, total = _length(ranges), sum(counts)
    regions, asked, given = [], 0, 0
    for count in counts:
        asked += count
        given_now = -(-left * asked // total)
        region, ranges = _split(ranges, given_now - given)
        regions.append(region)
        given = given_now
    return regions


def _without(ranges: Share, taken: Share) -> Share:
    """Return the positions of the ranges that are not taken; both are sorted."""
    rest: list[Range] = []
    number = 0
    for begin, end in ranges:
        while number < len(taken) and taken[number][1] <= end:
            if begin < taken[number][0]:
                rest.append((begin, taken[number][0]))
            begin = max(begin, taken[number][1])
            number += 1
        if begin < end:
            rest.append((begin, end))
    return tuple(rest)


def _split(ranges: Share, count: int) -> tuple[Share, Share]:
    """Return the first `count` positions of the ranges, and the others."""
    first: list[Range] = []
    for number, (begin, end) in enumerate(ranges):
        if count == 0:
            return tuple(first), ranges[number:]
        middle = min(begin + count, end)
        first.append((begin, middle))
        count -= middle - begin
        if middle < end:
            return tuple(first), ((middle, end), *ranges[number + 1 :])
    return tuple(first), ()


def _merged(ranges: Iterable[Range]) -> Share:
    """Return the positions of the ranges, sorted and in as few ranges as possible."""
    merged: list[Range] = []
    for begin, end in sorted(ranges):
        if merged and merged[-1][1] == begin:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((begin, end))
    return tuple(merged)


def _length(share: Share) -> int:
    return sum(end - begin for begin, end in share)

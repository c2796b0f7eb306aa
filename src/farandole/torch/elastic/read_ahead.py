"""Reading ahead, on the assumption that the world does not change: the plan, and torch's DataLoader, which executes it.

The plan is the DataLoader's batch sampler: whenever there is room for another batch, the DataLoader asks it for the
next. If the world changes, or steps differ from the plan, there is a new plan, and the samples that were read ahead are
dropped; the worker processes continue. Without worker processes, only the plan is ahead: each step is read when it is
requested.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from multiprocessing.sharedctypes import RawValue
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate

from farandole.torch.elastic.order import indices
from farandole.torch.elastic.reading import (
    Collate,
    Portion,
    ProcessStart,
    ReadRequest,
    Source,
    can_gather,
    gather,
    read,
)
from farandole.worker.elastic.ledger import UNBOUNDED, Ledger, Share

# The number of samples of this rank that are planned at once. Between two steps of a training, planning drops out of
# the caches: the first step planned costs many times as much as the others. More than this gains little, and costs
# memory, and time if it is dropped.
_STEPS_AT_ONCE = 64
_SAMPLES_AT_ONCE = 2048


class Step:
    """A planned step: the samples to read, and those that have been read."""

    __slots__ = ("after", "data", "end", "is_read", "items", "ledger", "portion", "samples", "shares", "total")

    def __init__(self, ledger: Ledger, shares: tuple[Share, ...], after: Ledger, rank: int) -> None:
        self.ledger = ledger
        self.shares = shares
        self.after = after
        """The ledger after it, if no rank is lost and no stream ends."""
        self.samples = sum(end - begin for begin, end in shares[rank])
        """The samples of this rank, if no stream ends."""
        self.total = ledger.left - after.left
        """The samples of all ranks, if no stream ends."""
        self.portion = _portion(ledger, shares, rank)
        """The portion to read; None if this rank has nothing to read."""
        self.items: Sequence[Any] = ()
        """The reader of this process, if it reads without worker processes."""
        self.is_read = self.portion is None
        self.data: Any = None
        """The collated samples of this rank; None if it has none."""
        self.end: int | None = None
        """The length of the stream, if it ends before all positions of this step."""

    def set_read(self, data: Any, end: int | None) -> None:
        """Accept the samples that were read.

        Args:
            data: the samples, collated.
            end: the number of positions that exist before the portion's goal; None if all exist.

        Raises:
            RuntimeError: a stream has fewer samples than before.
        """
        assert self.portion is not None
        if end is not None and end < self.portion.goal:
            if self.ledger.samples != UNBOUNDED or end < self.ledger.cursor:
                raise RuntimeError(
                    f"the dataset ended after {end} samples, but had more before, or on another rank: it must "
                    "return the same samples each time, on all ranks."
                )
            self.end = end
        self.data, self.is_read = data, True


def _portion(ledger: Ledger, shares: tuple[Share, ...], rank: int) -> Portion | None:
    own = shares[rank]
    if ledger.samples != UNBOUNDED:
        return Portion(ledger, own, goal=max(end for _, end in own)) if own else None
    # Each rank checks whether all positions of the step exist, those of other ranks included. So all ranks come to the
    # same result without a message.
    return Portion(ledger, own, goal=max(end for share in shares for _, end in share))


class Plan:
    """The steps that follow if the world does not change, from the current one on."""

    def __init__(self, by_ranges: bool, sends: bool) -> None:
        """Create an empty plan.

        Args:
            by_ranges: whether the reader takes portions.
            sends: whether read requests go to other processes.
        """
        self._by_ranges = by_ranges
        self._sends = sends
        self.number = RawValue("q", 0)
        """The number of the plan, in shared memory. Reads with another number are outdated."""
        self._ledger: Ledger | None = None
        """The ledger after the planned steps."""
        self._counts: Sequence[int] = ()
        self._rank = 0
        self._steps: deque[Step] = deque()
        self._asked = 0
        """The number of planned steps, from the current one on, that the DataLoader has requested."""

    def begin(self, ledger: Ledger, counts: Sequence[int], rank: int) -> None:
        """Make a new plan, from a ledger, for a world."""
        self.forget()
        self._ledger, self._counts, self._rank = ledger, counts, rank

    def forget(self) -> None:
        """Drop all planned steps."""
        self.number.value += 1
        self._ledger = None
        self._steps.clear()
        self._asked = 0

    def fits(self, ledger: Ledger, counts: Sequence[int], rank: int) -> bool:
        """Return whether the planned steps are those of this ledger and world."""
        planned = self._steps[0].ledger if self._steps else self._ledger
        # If all goes as planned, both are the same object, and checking that costs less than comparing them.
        return (planned is ledger or planned == ledger) and self._counts == counts and self._rank == rank

    def first(self) -> Step | None:
        """Return the current step, or None at the end of the epoch."""
        if not self._steps:
            self._extend()
        return self._steps[0] if self._steps else None

    def advance(self) -> None:
        """Continue with the next step."""
        if self._steps:
            self._steps.popleft()
            if self._asked:
                self._asked -= 1

    def __iter__(self) -> Plan:
        return self

    def __next__(self) -> ReadRequest | Sequence[Any]:
        """Return the next portion to read, for torch's DataLoader."""
        while True:
            if self._asked == len(self._steps) and self._reads:
                self._extend()
            if self._asked == len(self._steps):
                raise StopIteration
            step = self._steps[self._asked]
            self._asked += 1
            if step.portion is not None:
                return ReadRequest(self.number.value, step.portion, self._by_ranges) if self._sends else step.items

    @property
    def _reads(self) -> bool:
        """Whether this rank reads anything in the epoch; otherwise a search for its next step would scan the whole
        epoch.
        """
        return self._ledger is not None and (self._ledger.samples == UNBOUNDED or self._counts[self._rank] > 0)

    def _extend(self) -> None:
        """Plan some more steps, if the epoch has any."""
        ledger, samples = self._ledger, 0
        planned: list[Step] = []
        while ledger is not None and ledger.left and len(planned) < _STEPS_AT_ONCE and samples < _SAMPLES_AT_ONCE:
            step = Step(ledger, *ledger.step(self._counts), self._rank)
            ledger = step.after
            samples += step.samples
            planned.append(step)
        if planned and not self._sends:
            self._set_items(planned)
        self._steps += planned
        self._ledger = ledger

    def _set_items(self, planned: Sequence[Step]) -> None:
        """Set the reader's input for all steps together, because computing indices one by one costs more."""
        if self._by_ranges:
            for step in planned:
                step.items = [step.portion]
            return
        found = iter(indices(planned[0].ledger, tuple(part for step in planned for part in step.shares[self._rank])))
        for step in planned:
            step.items = list(islice(found, step.samples))


class ReadAhead:
    """Reads the steps of a plan, ahead if there are worker processes.

    Args:
        source: the dataset that is read.
        num_workers: the number of processes that read; 0: this process, which does not read ahead.
        collate_fn: a function that makes a batch of a list of samples; None: torch's.
        worker_init_fn: called in each worker process.
        settings: other settings of torch's DataLoader.
    """

    def __init__(
        self,
        source: Source,
        num_workers: int,
        collate_fn: Callable[[Any], Any] | None,
        worker_init_fn: Callable[[int], None] | None,
        settings: dict[str, Any],
    ) -> None:
        self._num_workers = num_workers
        self._reader = source.reader
        collate_fn = collate_fn or default_collate
        self._collate = Collate(collate_fn, source.by_ranges)
        self._reads_here = num_workers == 0 and not settings["pin_memory"]
        self._may_gather = collate_fn is default_collate
        self._plan = Plan(source.by_ranges, sends=num_workers > 0)
        self._start = ProcessStart(self._plan.number, worker_init_fn)
        self._make_loader: Callable[[], DataLoader[Any]] = partial(
            DataLoader,
            source.reader,
            batch_sampler=self._plan,  # type: ignore[arg-type]  # A read request becomes a list in transit.
            num_workers=num_workers,
            collate_fn=self._collate,
            worker_init_fn=self._start,
            persistent_workers=num_workers > 0,
            **settings,
        )
        self._loader = self._make_loader()
        self._batches: Any = None
        """The batches of the DataLoader, with its worker processes, if there are any."""
        self._is_outdated = False

    def first(self, ledger: Ledger, counts: Sequence[int], rank: int) -> Step | None:
        """Return the current step with this rank's samples, or None at the end of the epoch."""
        if not self._plan.fits(ledger, counts, rank):
            self.forget()
            self._plan.begin(ledger, counts, rank)
        step = self._plan.first()
        if step is not None and not step.is_read:
            try:
                step.set_read(*self._read(step))
            except BaseException:
                # The worker processes will not send this batch again, so reading must restart.
                self.forget()
                raise
        return step

    def read_here(self, portion: Portion) -> Any:
        """Return the batch of a portion that is not part of the plan, read by this process."""
        return read(self._reader, [portion], self._collate)[0]

    def advance(self) -> None:
        """Continue with the next step, as planned."""
        self._plan.advance()

    def forget(self) -> None:
        """Drop everything that was read or is being read."""
        self._plan.forget()
        # Without worker processes nothing is read ahead. Restarting would do harm: the DataLoader draws a number
        # from torch's random generator, which is the user's.
        self._is_outdated = self._num_workers > 0

    def close(self) -> None:
        """End the worker processes. Later steps get new ones."""
        self.forget()
        if self._batches is not None and self._num_workers > 0:
            # They would end with the last reference as well. But that may be in the traceback of an exception, and if
            # the garbage collector finds it, torch waits for them in vain, because their queues are gone already.
            self._batches._shutdown_workers()
        self._batches = None
        self._loader = self._make_loader()

    def _read(self, step: Step) -> Any:
        if self._batches is None or self._is_outdated:
            self._begin()
        # A profile should show the DataLoader under the name that torch's users expect.
        if not self._reads_here or torch.autograd._profiler_enabled():  # type: ignore[attr-defined]  # Not declared.
            return next(self._batches)
        # This is checked for each batch: the user may have put other tensors into the dataset meanwhile.
        if self._may_gather and can_gather(self._reader):
            return gather(self._reader, step.items), None
        return read(self._reader, step.items, self._collate)

    def _begin(self) -> None:
        """Restart the worker processes: wait for what they are reading, and request as much as fits.

        Without worker processes this is also done, once: it draws a random number from the user's generator, as each
        pass through a DataLoader does, and prepares torch's data pipes.
        """
        self._start.prepare()
        try:
            self._batches = iter(self._loader)
        except BaseException:
            # It is not known which requests the processes will still answer, so they end, and new ones start with the
            # next batch.
            self.close()
            raise
        self._is_outdated = False

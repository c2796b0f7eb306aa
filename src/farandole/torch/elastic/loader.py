"""Batches of a dataset in a world that changes: every sample exactly once in an epoch.

The loader has the ledger (`worker.elastic.ledger`), which is the same on all ranks, so each knows without communication
which samples all of them read in a step. In a step, `next` returns this rank's batch and changes nothing; then the step
is committed, with the ranks that were lost in it, or aborted and repeated.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Any

import msgspec
from torch.utils.data import default_collate

from farandole.torch.elastic.read_ahead import ReadAhead, Step
from farandole.torch.elastic.reading import Portion, source_of
from farandole.worker.elastic.batches import BatchPolicy, chosen_batches
from farandole.worker.elastic.ledger import UNBOUNDED, Ledger, Share
from farandole.worker.elastic.loader_arguments import check_flag, check_function, read_whole
from farandole.worker.elastic.ranges import is_ranged, refusal_to_shuffle


class Batch(msgspec.Struct, frozen=True, eq=False):
    """One rank's samples of one step."""

    data: Any
    """The collated samples; None if this rank has no samples."""
    shares: tuple[Share, ...]
    """The positions of all ranks, by rank."""
    samples: int
    """The number of this rank's samples."""
    total: int
    """The number of samples of all ranks, by which the sum of their gradients is divided."""
    ledger: Ledger
    """The ledger before the step."""
    after: Ledger
    """The ledger after the step, if no rank is lost."""
    end: int | None
    """The length of a stream whose end was seen in this step."""

    def committed(self, lost: Collection[int] = ()) -> Ledger:
        """Return the ledger after this step, without the shares of lost ranks."""
        if not lost:
            return self.after
        after = self.ledger.commit(self.shares, lost)
        return after if self.end is None else after.ends_at(self.end)


class ElasticLoader:
    """Loads batches of a dataset, shared among the ranks of the current world.

    Three kinds of datasets:

    - with `__len__` and `__getitem__` (and optionally `__getitems__`), read as by torch's DataLoader;
    - iterable ones, such as `torch.utils.data.IterableDataset`. They must yield the same samples in the same order each
      time, on all ranks: every rank iterates over the whole stream and keeps its part. The length need not be known:
      the epoch ends with the stream. At most one process reads. Samples of lost workers are read by iterating over the
      stream again from its beginning;
    - with `__len__` and `farandole_read(ranges)`, which returns the samples at ranges of positions, each (begin, end),
      in their order. Only these are requested, so any number of processes may read. Instead of samples it may return
      *columns*, a dict of arrays whose first dimension is the samples; the batch is then a dict of tensors. With the
      attribute `farandole_apart = True`, each rank reads in its own region, which suits data in large blocks.

    The last two kinds are not shuffled here; if they have `set_epoch(epoch)`, it is called before they are read.

    Worker processes read ahead on the assumption that the world does not change. If it does, they drop these samples,
    and continue; they run until the loader is closed or garbage-collected. `torch.utils.data.get_worker_info()` works
    in them, and their random seeds are those of torch's DataLoader.

    Args:
        dataset: the dataset, the same on all ranks.
        batch_size: samples of each worker in a step.
        global_batch_size: the samples of all workers together, instead of `batch_size`; in a larger world, some workers
            have none.
        batches: another policy instead, which returns the number of samples of each rank.
        shuffle: whether samples come in a pseudo-random order, which differs in each epoch. None: only if the dataset
            has indices.
        seed: the seed of that order, the same on all ranks.
        drop_last: whether to omit the last step of an epoch if it would be short. It may contain samples of lost
            workers.
        num_workers: worker processes of this rank; 0 reads in this process.
        collate_fn: a function that makes a batch of a list of samples, or of columns; None: torch's.
        prefetch_factor: the number of batches that each worker process reads ahead; None: 2.
        pin_memory: whether batches are copied to pinned memory.
        worker_init_fn: called in each worker process, with its number.
        multiprocessing_context: the start method of worker processes, as for torch's DataLoader.

    Raises:
        ValueError: an argument is not valid; the message says what to pass instead.

    Example:
        >>> loader = ElasticLoader(range(10), global_batch_size=4, shuffle=False)
        >>> batch = loader.next(world_size=2, rank=1)
        >>> batch.data, batch.total
        (tensor([2, 3]), 4)
        >>> loader.commit(batch, lost=[0])
        >>> loader.next(world_size=1, rank=0).data
        tensor([0, 1, 4, 5])
    """

    def __init__(
        self,
        dataset: Any,
        *,
        batch_size: int | None = None,
        global_batch_size: int | None = None,
        batches: BatchPolicy | None = None,
        shuffle: bool | None = None,
        seed: int = 0,
        drop_last: bool = False,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        prefetch_factor: int | None = None,
        pin_memory: bool = False,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
    ) -> None:
        policy = chosen_batches(batch_size, global_batch_size, batches)
        seed, num_workers = read_whole("seed", seed), read_whole("num_workers", num_workers, least=0)
        check_function("collate_fn", collate_fn)
        check_function("worker_init_fn", worker_init_fn)
        for name, flag in (("shuffle", shuffle), ("drop_last", drop_last), ("pin_memory", pin_memory)):
            check_flag(name, flag)
        if prefetch_factor is not None:
            prefetch_factor = read_whole("prefetch_factor", prefetch_factor, least=1)
        # For the same size of the world, farandole's policies always return the same counts, which can be cached; a
        # function of the user may not.
        self._counts: Callable[[int], tuple[int, ...]] = lru_cache(policy.counts) if batches is None else policy.counts
        source = source_of(dataset)
        if shuffle and source.by_ranges:
            raise ValueError(refusal_to_shuffle(dataset))
        if source.processes is not None and num_workers > source.processes:
            warnings.warn(
                f"a {type(dataset).__name__} is one stream, which one worker process reads, not {num_workers}: give it "
                "the method farandole_read(ranges), so that each process reads only its part.",
                stacklevel=2,
            )
            num_workers = source.processes
        self._dataset = dataset
        self._collate = default_collate if collate_fn is None else collate_fn
        self._samples = source.samples
        self._has_own_order = source.by_ranges
        shuffle = not source.by_ranges if shuffle is None else shuffle
        self._ledger = Ledger(source.samples, seed, shuffle=shuffle, drop_last=drop_last, apart=source.apart)
        settings = {
            "prefetch_factor": prefetch_factor,
            "pin_memory": pin_memory,
            "multiprocessing_context": multiprocessing_context,
        }
        self._read_last: Any = None
        """The last batch that this rank has read; only for a dataset that is read in its own order."""
        self._ahead = ReadAhead(source, num_workers, collate_fn, worker_init_fn, settings)

    @property
    def ledger(self) -> Ledger:
        """The used samples of the epoch. A worker that joins gets the ledger from the others, with the weights."""
        return self._ledger

    @ledger.setter
    def ledger(self, ledger: Ledger) -> None:
        if UNBOUNDED != self._samples != ledger.samples:
            raise ValueError(
                f"this ledger is for {ledger.samples} samples, but the dataset has {self._samples}: all workers need "
                "the same dataset, and a checkpoint the one that it was made with."
            )
        if ledger.shuffle and self._has_own_order:
            raise ValueError(
                "this ledger is for a shuffled dataset, but the dataset here has an order of its own: all workers need "
                "the same dataset, and a checkpoint the one that it was made with."
            )
        self._ledger = ledger

    def counts(self, world_size: int) -> tuple[int, ...]:
        """Return the number of samples that each rank takes in a full step, by rank."""
        return self._counts(world_size)

    def take_counts_from(self, batches: BatchPolicy) -> None:
        """Use another policy from the next step on. It may change its counts between two steps."""
        self._counts = batches.counts

    def next(self, world_size: int, rank: int) -> Batch | None:
        """Return this rank's batch of the next step, or None at the end of the epoch. All ranks agree about the end.

        Until the step is committed or aborted, this is the batch of the same step.

        Args:
            world_size: the number of workers in the present world.
            rank: this worker's rank in it.

        Raises:
            ValueError: `rank` is not a rank of the world.
            RuntimeError: a dataset returns different samples than before.
            RuntimeError, OSError, EOFError: a worker process was killed; the type depends on what torch detects first.
            Exception: the dataset's or `collate_fn`'s exception, with the traceback of the worker process in its
                message. The same batch may be requested again.
        """
        if not 0 <= rank < world_size:
            raise ValueError(f"{rank} is not a rank of a world of {world_size}: ranks are 0 to {world_size - 1}.")
        counts = self._counts(world_size)
        if self._ledger.drop_last and self._ledger.left < sum(counts):
            return None
        step = self._ahead.first(self._ledger, counts, rank)
        if step is None:
            return None
        batch = _batch(step, rank)
        if batch.total == 0 or (self._ledger.drop_last and batch.end is not None):
            # The stream of samples ended just before this step, or in the middle of it.
            self._ledger = batch.committed()
            return None
        if self._has_own_order and batch.data is not None:
            self._read_last = batch.data
        return batch

    def borrow(self, batch: Batch) -> Any:
        """Return two samples of other ranks' parts of a step, collated, for a rank that has none.

        They are for calls that all ranks must make, and do not count as used. There are two, because a single one has
        no variance; both are the same sample if there is no other. For a dataset that is read in its own order, return
        the last batch of this rank, if there was one, because a stream can be read again only from its beginning.
        """
        if self._read_last is not None:
            return self._read_last
        positions = [position for share in batch.shares for begin, end in share for position in range(begin, end)[:2]]
        first, second = (positions * 2)[:2]
        if self._has_own_order:
            share = (first, first + 1), (second, second + 1)
            lent = self._ahead.read_here(Portion(batch.ledger, share, goal=second + 1))
            self._read_last = None if is_ranged(self._dataset) else lent
            return lent
        return self._collate([self._dataset[batch.ledger.index(position)] for position in (first, second)])

    def commit(self, batch: Batch, lost: Collection[int] = ()) -> None:
        """Count the samples of a step as used, and continue with the next one.

        Args:
            batch: the batch of the step; its samples are those of all ranks.
            lost: the ranks, in the world of the batch, whose gradients are not in the result. Their samples are read
                again in the next step.

        Raises:
            ValueError: this is not the batch of the current step.
        """
        self._check_current(batch)
        self._ledger = batch.committed(lost)
        self._ahead.advance()

    def abort(self, batch: Batch) -> None:
        """Treat a step as not done. `next` returns its samples again.

        They are read again, because the step may have changed them in place.

        Raises:
            ValueError: this is not the batch of the current step.
        """
        self._check_current(batch)
        self._ahead.forget()

    def next_epoch(self) -> None:
        """Begin the next epoch. The rest of this one is skipped."""
        self._ledger = self._ledger.next_epoch(self._samples)

    def steps_left(self, world_size: int) -> int | None:
        """Return the number of remaining steps of the epoch if the world does not change; None if a stream's end is
        unknown.
        """
        if self._ledger.samples == UNBOUNDED:
            return None
        full, rest = divmod(self._ledger.left, sum(self.counts(world_size)))
        return full + (rest > 0 and not self._ledger.drop_last)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as plain values."""
        return {"ledger": msgspec.to_builtins(self._ledger)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint, with its seed and order.

        Raises:
            ValueError: the state is for another dataset, or is not that of a loader.
        """
        if "ledger" not in state:
            raise ValueError("this is not the state of an ElasticLoader: pass the result of its state_dict().")
        self.ledger = msgspec.convert(state["ledger"], Ledger)

    def close(self) -> None:
        """End the worker processes. They also end with the loader, and with this process."""
        self._ahead.close()

    def _check_current(self, batch: Batch) -> None:
        # Mostly both are the same object, and checking that costs less than comparing them.
        if batch.ledger is not self._ledger and batch.ledger != self._ledger:
            raise ValueError(
                "this batch belongs to another step: commit or abort each batch once, before the ledger is replaced."
            )


def _batch(step: Step, rank: int) -> Batch:
    if step.end is None:
        return Batch(step.data, step.shares, step.samples, step.total, step.ledger, step.after, None)
    shares = tuple(_before(step.end, share) for share in step.shares)
    samples = [sum(end - begin for begin, end in share) for share in shares]
    after = step.ledger.commit(shares).ends_at(step.end)
    return Batch(step.data, shares, samples[rank], sum(samples), step.ledger, after, step.end)


def _before(position: int, share: Share) -> Share:
    """Return the part of a share that is before a position."""
    return tuple((begin, min(end, position)) for begin, end in share if begin < position)

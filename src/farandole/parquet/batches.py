"""Batches of a Parquet source in a world that does not change: for Keras' `fit`, `tf.data`, NumPy and JAX."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from farandole.base.display.wording import count
from farandole.errors import InvalidRequestError
from farandole.parquet.source import ParquetSource
from farandole.worker.core.basics import session_if_any
from farandole.worker.elastic.batches import chosen_batches
from farandole.worker.elastic.ledger import Ledger
from farandole.worker.elastic.loader_arguments import check_flag, check_function, read_whole
from farandole.worker.elastic.ranges import RangeReader, is_ranged, reads_apart


class Batches:
    """This rank's batches. Each iteration is one epoch, and all ranks have the same number of batches in it.

    Rows are divided by the same ledger as in `ElasticLoader`: each row is used once in an epoch. Elastic jobs need that
    loader, because this class does not follow a world that changes.

    Args:
        source: the rows.
        batch_size: rows of each worker in a step.
        global_batch_size: rows of all workers together in a step, instead of `batch_size`.
        collate: a function that makes a batch of the columns, a dict of arrays; None: the dict is the batch.
        drop_last: whether to omit the last step of an epoch if it would be short, so that functions are compiled for
            one size.
        rank: this worker's rank; None: its rank in the world.
        size: the number of workers; None: the size of the world.

    Raises:
        ValueError: an argument is not valid, or the last step would have rows for only some of the workers.

    Example:
        >>> samples = lambda rows: (rows["pixels"], rows["label"])  # doctest: +SKIP
        >>> batches = Batches(source, batch_size=64, collate=samples)  # doctest: +SKIP
        >>> model.fit(batches.forever(), steps_per_epoch=len(batches), epochs=10, shuffle=False)  # doctest: +SKIP
    """

    def __init__(
        self,
        source: ParquetSource,
        *,
        batch_size: int | None = None,
        global_batch_size: int | None = None,
        collate: Callable[[dict[str, Any]], Any] | None = None,
        drop_last: bool = False,
        rank: int | None = None,
        size: int | None = None,
    ) -> None:
        session = session_if_any()
        world = (0, 1) if session is None else (session.world.rank, session.world.size)
        self._rank = world[0] if rank is None else read_whole("rank", rank)
        size = world[1] if size is None else read_whole("size", size, least=1)
        if not 0 <= self._rank < size:
            raise InvalidRequestError(f"{self._rank} is not a rank of {size} workers: ranks are 0 to {size - 1}.")
        if not is_ranged(source):
            raise InvalidRequestError(f"source must be a ParquetSource, but is {source!r:.80}.")
        check_function("collate", collate)
        check_flag("drop_last", drop_last)
        if (batch_size is None) == (global_batch_size is None):
            raise InvalidRequestError(
                "Batches need either batch_size (rows of each worker) or global_batch_size (rows of all workers)."
            )
        policy = chosen_batches(batch_size, global_batch_size, None)
        self._counts = policy.counts(size)
        self._read = RangeReader(source).read
        self._collate = collate
        self._ledger = Ledger(len(source), shuffle=False, drop_last=drop_last, apart=reads_apart(source))
        self._steps = _steps(self._ledger, self._counts)

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return self._steps

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration, from 0. Set it when a training is resumed."""
        return self._ledger.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        epoch = read_whole("epoch", epoch, least=0)
        self._ledger = Ledger(
            self._ledger.samples, epoch=epoch, shuffle=False, drop_last=self._ledger.drop_last, apart=self._ledger.apart
        )

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the batches of an epoch; the next iteration is the next epoch."""
        ledger = self._ledger
        self._ledger = ledger.next_epoch()
        for _ in range(self._steps):
            shares, after = ledger.step(self._counts)
            columns = self._read(ledger.epoch, shares[self._rank])
            yield columns if self._collate is None else self._collate(columns)  # type: ignore[arg-type]
            ledger = after

    def forever(self) -> Iterator[Any]:
        """Iterate over one epoch after another, without end."""
        while True:
            yield from self


def _steps(ledger: Ledger, counts: tuple[int, ...]) -> int:
    """Return the number of steps in an epoch.

    Raises:
        InvalidRequestError: there are none, or some ranks would have no rows in the last one.
    """
    if ledger.samples < len(counts):
        raise InvalidRequestError(
            f"{count(ledger.samples, 'row')} cannot be shared by {len(counts)} workers, each of which needs one in "
            "each step: use fewer workers, or more rows."
        )
    full, rest = divmod(ledger.samples, sum(counts))
    if full == 0 and ledger.drop_last:
        raise InvalidRequestError(
            f"an epoch has no step: there are {ledger.samples} rows, and one step takes {sum(counts)}. Use smaller "
            "batches."
        )
    steps = full if ledger.drop_last else full + (rest > 0)
    # Steps do not depend on the rows, so the last steps can be computed without the earlier ones.
    near_end = max(0, full - 2) * sum(counts)
    last = Ledger(ledger.samples, cursor=near_end, drop_last=ledger.drop_last)
    while last.left and not (ledger.drop_last and last.left < sum(counts)):
        shares, last = last.step(counts)
        if not all(shares):
            raise InvalidRequestError(
                f"the last step of an epoch has rows for {sum(map(bool, shares))} of {len(counts)} workers: pass "
                "drop_last=True to omit it, or a batch_size of at least 2."
            )
    return steps

"""Datasets that are read by ranges of positions, through their method `farandole_read`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farandole.worker.elastic.ledger import Share


def is_ranged(dataset: Any) -> bool:
    """Return whether a dataset is read by ranges."""
    return hasattr(dataset, "farandole_read")


def reads_apart(dataset: Any) -> bool:
    """Return whether each rank should read in its own region, because the dataset is stored in large blocks."""
    return bool(getattr(dataset, "farandole_apart", False))


def refusal_to_shuffle(dataset: Any) -> str:
    """Return why a loader does not shuffle a dataset that is read in its own order."""
    return (
        f"a {type(dataset).__name__} is read in its own order and cannot be shuffled: omit shuffle, and shuffle within "
        "the dataset, the same way on all ranks (set_epoch(epoch) tells it the epoch)."
    )


class RangeReader:
    """Reads ranges of positions from a dataset.

    Args:
        dataset: its method `farandole_read(ranges)` takes a sequence of (begin, end) and returns the samples at these
            positions, in this order: as an iterable, or together as *columns*, a dict of arrays whose first dimension
            is the samples. If it has `set_epoch`, this is called first.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._epoch: int | None = None

    def read(self, epoch: int, share: Share) -> list[Any] | dict[str, Any]:
        """Return the samples of a share, as a list or as columns.

        Raises:
            RuntimeError: there are more or fewer samples than positions.
        """
        if self._epoch != epoch:
            self._epoch = epoch
            tell_epoch(self._dataset, epoch)
        read = self._dataset.farandole_read(share)
        samples = dict(read) if isinstance(read, Mapping) else list(read)
        lengths = {len(column) for column in samples.values()} if isinstance(samples, dict) else {len(samples)}
        asked = sum(end - begin for begin, end in share)
        if lengths != {asked}:
            raise RuntimeError(
                f"{type(self._dataset).__name__}.farandole_read({share}) returned "
                f"{' or '.join(map(str, sorted(lengths))) or 'no'} samples, but there are {asked} positions: it must "
                "return the sample of each."
            )
        return samples


def tell_epoch(dataset: Any, epoch: int) -> None:
    """Set the epoch of a dataset that has `set_epoch`."""
    if hasattr(dataset, "set_epoch"):
        dataset.set_epoch(epoch)

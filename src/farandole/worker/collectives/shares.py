"""The samples of each worker: the same number for each, so that no worker waits for another one's step."""

from __future__ import annotations

from collections.abc import Iterable

from farandole.errors import InvalidRequestError
from farandole.worker.core.group import ProcessSet


def place_in(process_set: ProcessSet) -> tuple[int, int]:
    """Return this worker's index in a process set, and the size of the set.

    Raises:
        ValueError: this rank is not in the set, or the set is not registered.
    """
    if process_set.included() is False:
        raise InvalidRequestError(f"this rank is not in the process set of ranks {process_set.ranks}: it has no part.")
    return process_set.rank(), len(process_set.ranks)


def share_of(lengths: Iterable[int], process_set: ProcessSet) -> slice:
    """Return the slice of this worker's rows: those whose number modulo the set's size is its index.

    Args:
        lengths: the lengths of all arrays; a rest that cannot be divided equally is omitted.
        process_set: the ranks that share the rows.

    Raises:
        ValueError: the arrays have different lengths, or there are none; or for the reasons of `place_in`.
    """
    place, size = place_in(process_set)
    different = sorted(set(lengths))
    if len(different) != 1:
        raise InvalidRequestError(f"these arrays have different lengths: {different}.")
    return slice(place, different[0] // size * size, size)

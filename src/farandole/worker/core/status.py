"""The mapping from statuses of the C ABI to exceptions."""

from __future__ import annotations

import re
from enum import IntEnum

from farandole.errors import (
    FarandoleError,
    HorovodInternalError,
    InvalidRequestError,
    MismatchError,
    ShutDownError,
    StalledError,
    StartError,
    WorkerLostError,
)


class Status(IntEnum):
    """Statuses of the C ABI (`enum farandole_status`)."""

    OK = 0
    INVALID_ARGUMENT = 1
    MISMATCH = 2
    WORKER_LOST = 3
    SHUT_DOWN = 4
    TIMEOUT = 5
    UNAVAILABLE = 6
    INTERNAL = 7
    STALLED = 8


_BY_STATUS: dict[int, type[FarandoleError]] = {
    Status.INVALID_ARGUMENT: InvalidRequestError,
    Status.MISMATCH: MismatchError,
    Status.UNAVAILABLE: StartError,
    Status.INTERNAL: HorovodInternalError,
    Status.STALLED: StalledError,
}


def from_status(status: int, message: str, lost_rank: int) -> FarandoleError:
    """Return the exception for a native status that is not OK.

    Args:
        status: the native function's return value.
        message: `farandole_last_error()` of the same thread.
        lost_rank: `farandole_last_lost_rank()` of the same thread: the rank that was lost or left; -1: no particular
            one.
    """
    rank = lost_rank if lost_rank >= 0 else None
    if status == Status.WORKER_LOST:
        return WorkerLostError(message, rank)
    if status == Status.SHUT_DOWN:
        return ShutDownError(message, rank)
    if status == Status.TIMEOUT:
        return StartError(message, rank)
    return _BY_STATUS.get(status, HorovodInternalError)(message)


# The form in which plugins of frameworks (native/plugins) write it, perhaps after the framework's own words.
_SENTENCE = re.compile(r"^.*?([^\n]*?) \(farandole status (\d+)(?:, rank (\d+))?\)", re.DOTALL)


def from_sentence(message: str) -> FarandoleError | None:
    """Return the exception for a framework's message about a failed op; None if the error is not farandole's.

    Args:
        message: a text in which a line ends with the native status and, if there is one, the lost rank.

    Example:
        >>> from_sentence("node x: rank 1 is lost (farandole status 3, rank 1)").rank
        1
    """
    found = _SENTENCE.match(message)
    if found is None:
        return None
    sentence, status, rank = found.groups()
    return from_status(int(status), sentence, -1 if rank is None else int(rank))

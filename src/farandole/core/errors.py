"""What farandole raises, and the one place where native statuses become exceptions.

FarandoleError (RuntimeError)
├── HorovodInternalError      a collective failed on all its ranks; recoverable (the name is Horovod's)
│   ├── MismatchError         the ranks asked for different things under one name; the job goes on
│   ├── WorkerLostError       a worker died or was cut off; this world is over
│   ├── ShutDownError         a worker left in good order; this world is over
│   ├── StalledError          some ranks never asked for what others waited for; this world is over
│   └── NotInitializedError   init() has not been called (also a ValueError)
├── InvalidRequestError       this call is wrong, whatever the other ranks do (also a ValueError)
├── SettingError              a setting has a value that cannot be used (also a ValueError)
├── TimelineError             the timeline cannot be recorded there (also an OSError)
├── LibraryError              the native library is missing or does not fit (also an ImportError)
└── StartError                the engine or the world could not be made
"""

from __future__ import annotations

from enum import IntEnum


class FarandoleError(RuntimeError):
    """The root of everything that farandole raises by itself."""


class HorovodInternalError(FarandoleError):
    """A collective failed, on all ranks that took part; elastic training recovers from it."""


class MismatchError(HorovodInternalError):
    """The ranks asked for different things under one name. Only that request failed."""


class WorkerLostError(HorovodInternalError):
    """A worker died or was cut off. All requests of this world fail.

    Attributes:
        rank: the lost worker's rank in the world, or None if no single one is to blame.
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank


class ShutDownError(HorovodInternalError):
    """A worker left the world in good order while this one still had requests. All requests of this world fail."""


class StalledError(HorovodInternalError):
    """Some ranks did not ask for what others waited for, for longer than the set time. All requests of this world fail.

    The message names what was waited for, and the ranks that were missing.
    """


class InvalidRequestError(FarandoleError, ValueError):
    """The call is wrong by itself: a bad root, not a member, a name already in flight."""


class NotInitializedError(HorovodInternalError, ValueError):
    """There is no world to ask.

    In Horovod a collective raises HorovodInternalError then, and a question such as `rank()` ValueError.
    """

    def __init__(self) -> None:
        super().__init__("farandole has not been initialized; use hvd.init().")


class SettingError(FarandoleError, ValueError):
    """A setting has a value that cannot be used; the message names the variable."""


class TimelineError(FarandoleError, OSError):
    """The file of the timeline cannot be written."""


class LibraryError(FarandoleError, ImportError):
    """The native library is missing, or is of another version than this package."""


class StartError(FarandoleError):
    """The engine or the world could not be made."""


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
    Status.SHUT_DOWN: ShutDownError,
    Status.TIMEOUT: StartError,
    Status.UNAVAILABLE: StartError,
    Status.INTERNAL: HorovodInternalError,
    Status.STALLED: StalledError,
}


def from_status(status: int, message: str, lost_rank: int) -> FarandoleError:
    """Return the exception for a native status that is not OK.

    Args:
        status: what the native function returned.
        message: `farandole_last_error()` of the same thread.
        lost_rank: `farandole_last_lost_rank()` of the same thread; -1 is nobody in particular.
    """
    if status == Status.WORKER_LOST:
        return WorkerLostError(message, lost_rank if lost_rank >= 0 else None)
    return _BY_STATUS.get(status, HorovodInternalError)(message)


def lost_rank_behind(error: BaseException | None) -> int | None:
    """Return the rank whose loss `error` merely follows, or None if it has a cause of its own.

    Looks along the chain of causes and contexts, so that `raise TrainingFailed from error` still counts as a
    consequence.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, WorkerLostError):
            return error.rank
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None

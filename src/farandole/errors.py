"""The errors that farandole raises.

FarandoleError (RuntimeError)
├── HorovodInternalError      a collective failed on all its ranks; recoverable (the name is Horovod's)
│   ├── MismatchError         the ranks made different requests under one name; the job continues
│   ├── WorkerLostError       a worker died or was cut off; this world has ended
│   ├── ShutDownError         a worker left gracefully; this world has ended
│   ├── StalledError          some ranks never made requests that others waited for; this world has ended
│   └── NotInitializedError   init() has not been called (also a ValueError)
├── EvictedError              this worker was removed from the job
├── InvalidRequestError       this call is not valid, whatever the other ranks do (also a ValueError)
├── SettingError              a setting has a value that cannot be used (also a ValueError)
├── TimelineError             the timeline cannot be recorded there (also an OSError)
├── CheckpointError           there are checkpoints, and none can be used
├── LibraryError              the native library is missing or does not fit (also an ImportError)
├── StartError                the engine or the world could not be made
├── StateLostError            elastic: no worker is left that has the trained state
└── HostsUpdatedInterrupt     elastic: not a failure; the next world should be entered (the name is Horovod's)

LaunchError (RuntimeError)    the launcher could not start a job, or the job failed
├── SpecError                 the request cannot be carried out; nothing was started (also a ValueError)
└── JobFailed                 workers ran, and the job failed
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeVar

Exception_ = TypeVar("Exception_", bound=BaseException)


class Picklable:
    """Makes an exception work with `pickle`, `copy` and process pools, whatever its constructor's arguments are.

    By default, an exception is recreated by its constructor, from its text alone. If the constructor has other
    arguments, this fails in the receiving process, and `multiprocessing.Pool` then never returns.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the parts from which the exception is recreated: its text, and its attributes."""
        reduced: Any = super().__reduce__()
        kind, args, *state = reduced
        return (_made_again, (kind, args), *state)


def _made_again(kind: type[Exception_], args: tuple[object, ...]) -> Exception_:
    builtin: Any = kind
    while builtin.__module__ != "builtins":
        builtin = builtin.__base__
    error: Exception_ = builtin.__new__(kind, *args)
    builtin.__init__(error, *args)
    return error


class WithHint(Picklable, Exception):
    """The base of errors with a hint.

    Attributes:
        message: one sentence about the problem.
        hint: the next step for the user; "": none.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message} (hint: {hint})" if hint else message)
        self.message = message
        self.hint = hint


class FarandoleError(Picklable, RuntimeError):
    """The base of all errors that farandole raises in a worker."""


class HorovodInternalError(FarandoleError):
    """A collective failed, on all ranks that took part; elastic training recovers from it."""


class MismatchError(HorovodInternalError):
    """The ranks made different requests under one name. Only that request failed."""


class WorkerLostError(HorovodInternalError):
    """A worker died or was cut off. All requests of this world fail.

    Attributes:
        rank: the lost worker's rank in the world, or None if no single one is to blame.
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank


class ShutDownError(HorovodInternalError):
    """A worker left the world gracefully while this one still had requests. All requests of this world fail.

    Attributes:
        rank: the rank in the world of the worker that has left, or None if that is not known.
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank


class StalledError(HorovodInternalError):
    """Some ranks did not make requests that others waited for, for longer than the set time. All requests of this world
    fail.

    The message names the requests, and the missing ranks.
    """


class EvictedError(FarandoleError):
    """This worker is excluded from later worlds: it was asked to leave, or the others had to continue without it."""


class InvalidRequestError(FarandoleError, ValueError):
    """The call is not valid on this rank: for example a bad root, a rank outside the set, or a name in flight."""


NOT_INITIALIZED = "has not been initialized; use hvd.init()."


class NotInitializedError(HorovodInternalError, ValueError):
    """There is no world: init() has not been called, or shutdown() has.

    In Horovod, a collective then raises HorovodInternalError, and a query such as `rank()` ValueError.

    Attributes:
        product: the name of what has not been initialized, as the script has imported it.
    """

    product: ClassVar[str] = "farandole"

    def __init__(self) -> None:
        super().__init__(f"{self.product} {NOT_INITIALIZED}")


class SettingError(FarandoleError, ValueError):
    """A setting has a value that cannot be used; the message names the variable."""


class TimelineError(FarandoleError, OSError):
    """The file of the timeline cannot be written."""


class CheckpointError(FarandoleError):
    """There are checkpoints, and none can be used."""


class LibraryError(FarandoleError, ImportError):
    """The native library is missing, or is of another version than this package."""


class StartError(FarandoleError):
    """The engine or the world could not be made.

    Attributes:
        rank: the rank to which this or another rank of the world could not connect; None: there was another reason.
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank


class JobOverError(StartError):
    """There is no next world, because the job ends; its launcher prints the reason."""


class StateLostError(FarandoleError):
    """All workers that had the state of the training were lost before this one received it."""

    @classmethod
    def after(cls, departures: Iterable[str], then: str) -> StateLostError:
        """Return the error of a worker that knows of these departures.

        Args:
            departures: the workers that were lost, and how: the holders of the state, or others after them.
            then: the consequence.
        """
        # A worker that ended with this same error held nothing.
        last = "; ".join(each for each in departures if cls.__name__ not in each) or "earlier"
        return cls(f"all workers that held the state of the training are lost (lost last: {last}), and {then}")


class HostsUpdatedInterrupt(FarandoleError):
    """Workers join or leave, and training continues in the next world. `hvd.elastic.run` catches it.

    Attributes:
        skip_sync: whether workers only leave, so that the remaining ones already have the same state.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("workers come or go: training goes on in the next world")
        self.skip_sync = skip_sync


Reader = Callable[[BaseException], FarandoleError | None]
_readers: list[Reader] = []


def read_errors_by(reader: Reader) -> None:
    """Register a front end's function that converts its framework's errors to these; it returns None for others."""
    if reader not in _readers:
        _readers.append(reader)


def lost_rank_behind(error: BaseException | None) -> int | None:
    """Return the rank whose loss or departure has caused `error`, or None if it has another cause.

    The chain of causes and contexts is searched, so that `raise TrainingFailed from error` also counts as a
    consequence.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        for found in (error, *(read(error) for read in _readers)):
            if isinstance(found, (WorkerLostError, ShutDownError)):
                return found.rank
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None


class LaunchError(Picklable, RuntimeError):
    """A job could not be started, or failed."""


class SpecError(WithHint, LaunchError, ValueError):
    """The request cannot be carried out; nothing was started."""


class JobFailed(LaunchError):
    """Workers ran, and the job failed. The text is the whole report of the first failure.

    Attributes:
        rank: the rank that failed first, or None if the job was interrupted.
        exit_code: the exit code as a shell would report it: the worker's own, or 128 + the signal that ended it.
    """

    def __init__(self, report: str, rank: int | None, exit_code: int) -> None:
        super().__init__(report)
        self.rank = rank
        self.exit_code = exit_code

"""Events and actions of the slots of an elastic job."""

from __future__ import annotations

from dataclasses import dataclass

FAILED = "failed"
KILLED = "killed"
SUCCEEDED = "succeeded"
FINISHED = "finished"
STATE_LOST = "failed for want of the state"


# --- events ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HostsChanged:
    """The current hosts and their slots."""

    hosts: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class HostReady:
    """A host can start workers."""

    label: str


@dataclass(frozen=True)
class HostLost:
    """The agent of a host is lost. The end of its workers, and then `HostNotReady`, are reported once they are
    certain."""

    label: str


@dataclass(frozen=True)
class HostNotReady:
    """A host could not be reached, or was lost and has no workers left."""

    label: str
    why: str
    refused: bool = False
    """Whether it cannot be used in its present state: it is not retried until it disappears and comes back."""


@dataclass(frozen=True)
class HostLeaves:
    """A host was asked to leave, for example by SIGTERM to its agent."""

    label: str


@dataclass(frozen=True)
class HostRemoved:
    """A host is to be released at once, whatever its workers do."""

    label: str


@dataclass(frozen=True)
class HostNoticed:
    """A host reports whether it is about to be reclaimed."""

    label: str
    notice: str
    """The reason for the preemption; "" if there is none."""


@dataclass(frozen=True)
class WorldBegan:
    """A world was announced to these workers."""

    members: tuple[int, ...]


@dataclass(frozen=True)
class Progressed:
    """Some worker has made progress."""


@dataclass(frozen=True)
class Finishing:
    """Whether workers have left their world because they finished, so that newcomers are refused; or failed after
    all."""

    finishing: bool


@dataclass(frozen=True)
class WorkerLeaves:
    """A worker was asked to leave by someone other than the job, for example by SIGTERM; its host stays."""

    worker: int
    why: str


@dataclass(frozen=True)
class WorkerEnded:
    """A worker's process has ended."""

    worker: int
    how: str
    """SUCCEEDED: exit code 0; FINISHED: the same, after it had left its world by itself, having finished, or had
    returned the result of its function; FAILED: by itself; KILLED: from outside, or lost with its host; STATE_LOST: by
    itself, because no worker is left that holds the state of the training; all others will do so as well."""
    what: str = ""
    """The reason of its failure, such as `ValueError: boom`."""


@dataclass(frozen=True)
class Resized:
    """The user wants different limits."""

    min_size: int
    max_size: int | None


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = (
    HostsChanged
    | HostReady
    | HostLost
    | HostNotReady
    | HostLeaves
    | HostRemoved
    | HostNoticed
    | WorldBegan
    | Progressed
    | Finishing
    | WorkerLeaves
    | WorkerEnded
    | Resized
    | Tick
)


# --- actions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReachHost:
    """Start an agent there, and check whether workers can be started. Answered by `HostReady` or `HostNotReady`."""

    label: str


@dataclass(frozen=True)
class StartWorker:
    """Start a worker."""

    worker: int
    label: str
    slot: int


@dataclass(frozen=True)
class DrainWorkers:
    """Let workers leave at the end of a step."""

    workers: tuple[int, ...]
    why: str


@dataclass(frozen=True)
class StopWorkers:
    """End workers now."""

    workers: tuple[int, ...]
    why: str
    """The description of each worker's end, such as `did not leave within 30 s`."""


@dataclass(frozen=True)
class EndHost:
    """End the agent there: it has nothing left to do."""

    label: str


@dataclass(frozen=True)
class Say:
    """Print a message for the user."""

    text: str


@dataclass(frozen=True)
class EndJob:
    """End everything; nothing more is started."""

    why: str
    """The reason; "": the job succeeded."""
    hint: str = ""
    worker: int | None = None
    """The worker whose failure is the reason, if it is one worker's."""


Action = ReachHost | StartWorker | DrainWorkers | StopWorkers | EndHost | Say | EndJob

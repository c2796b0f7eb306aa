"""Events and actions of a job that concern hosts, slots and processes; those of membership are in `roster.events`."""

from __future__ import annotations

from dataclasses import dataclass

from farandole.control.roster import events as roster_events
from farandole.control.roster.events import Leaves, Resized

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
    """The agent of a host is lost.

    In an elastic job, its workers may still be alive: their ends, and then `HostNotReady`, are reported when they are
    certain. The workers of a job of fixed size have ended with the host.
    """

    label: str
    why: str = ""
    workers: tuple[int, ...] = ()
    """The workers on it that have not ended."""
    local: bool = False
    """Whether it is this machine."""


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
    """A host is to be released at once, without waiting for its workers."""

    label: str


@dataclass(frozen=True)
class HostNoticed:
    """A host reports whether it is about to be reclaimed."""

    label: str
    notice: str
    """The reason for the preemption; "" if there is none."""


@dataclass(frozen=True)
class Progressed:
    """A worker has made progress."""


@dataclass(frozen=True)
class WorkerEnded:
    """A worker's process has ended."""

    worker: int
    how: str
    """SUCCEEDED: exit code 0; FINISHED: the same, after it had left its world because its work was done, or had
        returned the result of its function; FAILED: it failed by itself; KILLED: it was killed from outside, or lost
        with its host; STATE_LOST: it failed because no worker is left that holds the state of the training; all others
        will fail for this reason as well."""
    what: str = ""
    """The reason of its failure, such as `ValueError: boom`."""
    in_words: str = ""
    """Such as `exited with code 1`."""
    returned: bool = False
    """Whether it has sent back the result of its function."""
    blames: int | None = None
    """The worker whose loss has caused its failure, according to its own report."""


@dataclass(frozen=True)
class EndedTogether:
    """The processes of several workers have ended. One decision is made for all of them."""

    ends: tuple[WorkerEnded, ...]


@dataclass(frozen=True)
class StopAsked:
    """The user wants the job to end; a second event ends it at once."""

    code: int
    """Its exit code."""
    why: str
    grace: float | None = None
    """Seconds between SIGTERM and SIGKILL; None: the default."""


@dataclass(frozen=True)
class CannotGoOn:
    """The job has lost a part without which it cannot continue."""

    why: str
    hint: str


@dataclass(frozen=True)
class TakenOver:
    """This launcher has taken over the remaining hosts and workers of a killed launcher's job."""


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


SlotEvent = (
    HostsChanged
    | HostReady
    | HostLost
    | HostNotReady
    | HostLeaves
    | HostRemoved
    | HostNoticed
    | Progressed
    | WorkerEnded
    | EndedTogether
    | Leaves
    | Resized
    | Tick
)
"""The events that the slot rules handle."""
Fact = SlotEvent | roster_events.Event
"""Events of hosts and workers, including those of the roster."""
Event = Fact | StopAsked | CannotGoOn | TakenOver


# --- actions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReachHost:
    """Start an agent on a host, and check whether workers can be started. Answered by `HostReady` or `HostNotReady`."""

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
    grace: float = 0.0
    """Seconds between SIGTERM and SIGKILL."""


@dataclass(frozen=True)
class EndHost:
    """End the agent of a host that is not used any more."""

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
    """The worker whose failure is the reason, if there is one."""
    grace: float | None = None
    """Seconds between SIGTERM and SIGKILL; None: the default."""
    stop_code: int | None = None
    """The exit code, if it does not follow from how the workers ended."""
    because_of: int | None = None
    """In a job of fixed size, the failed worker because of which all others are ended."""


SlotAction = ReachHost | StartWorker | DrainWorkers | StopWorkers | EndHost | Say | EndJob
"""Actions of the slot rules."""
Action = SlotAction | roster_events.Action

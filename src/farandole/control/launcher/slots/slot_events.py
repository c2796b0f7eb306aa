"""The words in which the slots of an elastic job are spoken of: what happens, and what is to be done about it."""

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
    """These are the hosts there are, and their slots."""

    hosts: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class HostReady:
    """A host can start workers."""

    label: str


@dataclass(frozen=True)
class HostLost:
    """The agent of a host is lost. Its workers, and then `HostNotReady`, are reported when their end is certain."""

    label: str


@dataclass(frozen=True)
class HostNotReady:
    """A host could not be reached, or was lost and has no workers any more."""

    label: str
    why: str
    refused: bool = False
    """It is of no use as it is: it is not tried again before it goes and comes back."""


@dataclass(frozen=True)
class HostLeaves:
    """A host was asked to go, such as by SIGTERM to its agent."""

    label: str


@dataclass(frozen=True)
class HostRemoved:
    """A host is to be left at once, whatever its workers do."""

    label: str


@dataclass(frozen=True)
class HostNoticed:
    """A host says whether it is about to be taken away."""

    label: str
    notice: str
    """Why it is; "" when it is not."""


@dataclass(frozen=True)
class WorldBegan:
    """A world was announced to these workers."""

    members: tuple[int, ...]


@dataclass(frozen=True)
class Progressed:
    """Some worker has got somewhere."""


@dataclass(frozen=True)
class Finishing:
    """Workers have left their world in good order, so that newcomers are refused; or they have failed after all."""

    finishing: bool


@dataclass(frozen=True)
class WorkerLeaves:
    """A worker was asked to leave by somebody else than the job, as by SIGTERM; its host stays."""

    worker: int
    why: str


@dataclass(frozen=True)
class WorkerEnded:
    """A worker's process is gone."""

    worker: int
    how: str
    """SUCCEEDED: exit code 0; FINISHED: the same, after it had left its world by itself, in good order, or had sent
    back what its function returned; FAILED: by itself; KILLED: from outside, or lost with its host; STATE_LOST: by
    itself, because no worker is left that holds the state of the training; so will all others."""
    what: str = ""
    """What it failed of, such as `ValueError: boom`."""


@dataclass(frozen=True)
class Resized:
    """The user wants another size."""

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
    """Start an agent there, and see whether workers can be started. Answered by `HostReady` or `HostNotReady`."""

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
    """What is said of each, such as `did not leave within 30 s`."""


@dataclass(frozen=True)
class EndHost:
    """End the agent there: nothing is left for it to do."""

    label: str


@dataclass(frozen=True)
class Say:
    """Tell the user."""

    text: str


@dataclass(frozen=True)
class EndJob:
    """End all; nothing is started any more."""

    why: str
    """"": all is well."""
    hint: str = ""
    worker: int | None = None
    """Whose failure is the reason, if it is one worker's."""


Action = ReachHost | StartWorker | DrainWorkers | StopWorkers | EndHost | Say | EndJob

"""The protocol of a daemon and its clients: frames of `wire.frames` over a Unix socket.

A client shows the job, or is a command that asks for something or changes something. Descriptors travel with the
message that they belong to (SCM_RIGHTS).
"""

from __future__ import annotations

import msgspec

from farandole.base.wire.frames import FRAME_LIMIT
from farandole.base.wire.rendezvous import Measures
from farandole.control.jobs.view import JobView
from farandole.control.launcher.supervise.control import HostRow

MESSAGE_LIMIT = FRAME_LIMIT


class Looks(msgspec.Struct, frozen=True):
    """The properties of one of a client's two streams that only the client can know."""

    colors: bool = False
    terminal: bool = False
    """Whether progress bars and a status line may be drawn on it."""


# --- from clients --------------------------------------------------------------------------------------------------


class Launch(msgspec.Struct, frozen=True, tag="launch"):
    """Start a job: the first message to a daemon, from its parent process, with the descriptor of the lock."""

    request: bytes
    """A pickled `LaunchRequest`. Empty for the successor of a killed daemon: the launch request is in the directory; if
        it is not there, the job has ended."""
    directory: str
    """The job's directory, which is locked."""


class Show(msgspec.Struct, frozen=True, tag="show"):
    """Show the job on this client from now on. With two descriptors: standard output and error."""

    out: Looks
    err: Looks
    again: bool = False
    """Whether this client has shown the job before: then only later output is repeated."""


class Hide(msgspec.Struct, frozen=True, tag="hide"):
    """Stop showing the job on this client; answered by `Hidden` when nothing more is written."""


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """End the job with its grace period, or at once at the second message."""

    code: int
    why: str


class AddHosts(msgspec.Struct, frozen=True, tag="add-hosts"):
    """Let workers run on more hosts."""

    hosts: str
    """The hosts in the form of `-H`."""


class RemoveHost(msgspec.Struct, frozen=True, tag="remove-host"):
    """Remove a host at once."""

    name: str


class DrainHost(msgspec.Struct, frozen=True, tag="drain-host"):
    """Remove a host once its workers have left gracefully."""

    name: str


class ListHosts(msgspec.Struct, frozen=True, tag="list-hosts"):
    """Return the hosts of the job."""


class Scale(msgspec.Struct, frozen=True, tag="scale"):
    """Limit the number of workers."""

    workers: int


class ScheduleBatch(msgspec.Struct, frozen=True, tag="schedule-batch"):
    """Set the batch of a training with an adaptive batch size."""

    samples: int
    """Samples of all workers together; 0 lets the job choose."""


class Kill(msgspec.Struct, frozen=True, tag="kill"):
    """Send a signal to one worker."""

    rank: int
    signal: int


class AskStatus(msgspec.Struct, frozen=True, tag="ask-status"):
    """Return the status of the job."""


class AskView(msgspec.Struct, frozen=True, tag="ask-view"):
    """Return the whole visible state of the job."""

    lines_from: int = 0
    """The number of the first line of output to return."""


HostsRequest = AddHosts | RemoveHost | DrainHost | ListHosts | Scale | ScheduleBatch | Kill
FromClient = Launch | Show | Hide | Stop | HostsRequest | AskStatus | AskView

# --- from the daemon ------------------------------------------------------------------------------------------------


class Hidden(msgspec.Struct, frozen=True, tag="hidden"):
    """Nothing is written to the client's descriptors any more."""


class TakenOver(msgspec.Struct, frozen=True, tag="taken-over"):
    """Another client now shows the job."""


class Unread(msgspec.Struct, frozen=True, tag="unread"):
    """The client's output has no reader, or no space."""


class JobEnded(msgspec.Struct, frozen=True, tag="ended"):
    """The job has ended, and all of its output was written."""

    exit_code: int
    report: str = ""
    rank: int | None = None
    shown: bool = True
    """Whether this client has shown the last lines; otherwise they are in the job's directory, with this message."""


class RequestRefused(msgspec.Struct, frozen=True, tag="refused"):
    """The request failed with a `SpecError`."""

    message: str
    hint: str = ""


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The change was made; the lines tell people what happens next."""

    lines: tuple[str, ...]


class HostsAre(msgspec.Struct, frozen=True, tag="hosts-are"):
    """The hosts of the job."""

    rows: tuple[HostRow, ...]


class StatusIs(msgspec.Struct, frozen=True, tag="status-is"):
    """The status of the job; see `control.Status`."""

    size: int
    generation: int
    waits_for: str
    steps_per_second: float | None = None
    measures: tuple[Measures, ...] = ()
    scheduled_batch: int = 0


class ViewIs(msgspec.Struct, frozen=True, tag="view-is"):
    """The visible state of the job."""

    view: JobView


FromDaemon = Hidden | TakenOver | Unread | JobEnded | RequestRefused | Done | HostsAre | StatusIs | ViewIs

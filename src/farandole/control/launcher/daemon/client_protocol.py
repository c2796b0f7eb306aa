"""What a daemon and its clients say to each other over a Unix socket, in frames as `wire.frames` has them.

A client shows the job, or is a command that wants to know or change something. Descriptors travel
beside the bytes (SCM_RIGHTS), with the message that they belong to.
"""

from __future__ import annotations

import msgspec

from farandole.base.wire.frames import FRAME_LIMIT
from farandole.base.wire.rendezvous import Measures
from farandole.control.jobs.view import JobView
from farandole.control.launcher.supervise.control import HostRow

MESSAGE_LIMIT = FRAME_LIMIT


class Looks(msgspec.Struct, frozen=True):
    """How one of a client's two streams is to look, as far as only the client can know it."""

    colors: bool = False
    terminal: bool = False
    """Whether bars and a status line may be drawn on it."""


# --- from clients --------------------------------------------------------------------------------------------------


class Launch(msgspec.Struct, frozen=True, tag="launch"):
    """Start this job: the first message to a daemon, from the client that started it. With a descriptor, the claim."""

    request: bytes
    """A pickled `LaunchRequest`. Only the parent process can send it. Empty: a daemon was killed, and its
    launch request is in the directory; if nothing is left of that, the job has ended."""
    directory: str
    """Of the job, claimed."""


class Show(msgspec.Struct, frozen=True, tag="show"):
    """Show the job here from now on. With two descriptors: standard output and error."""

    out: Looks
    err: Looks
    again: bool = False
    """Whether it was shown here before: then only what has come since is caught up on."""


class Hide(msgspec.Struct, frozen=True, tag="hide"):
    """Write nothing here any more; answered by `Hidden` when that is so."""


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """End the job in good order; a second time: at once."""

    code: int
    why: str


class AddHosts(msgspec.Struct, frozen=True, tag="add-hosts"):
    """Let workers run there as well."""

    hosts: str
    """As `-H` takes them."""


class RemoveHost(msgspec.Struct, frozen=True, tag="remove-host"):
    """Take a host away at once."""

    name: str


class DrainHost(msgspec.Struct, frozen=True, tag="drain-host"):
    """Take a host away when its workers have left in good order."""

    name: str


class ListHosts(msgspec.Struct, frozen=True, tag="list-hosts"):
    """Which hosts are there?"""


class Scale(msgspec.Struct, frozen=True, tag="scale"):
    """Have at most so many workers from now on."""

    workers: int


class ScheduleBatch(msgspec.Struct, frozen=True, tag="schedule-batch"):
    """Train with that batch from now on, if the batch adapts itself."""

    samples: int
    """Of all workers together; 0: as the job chooses."""


class Kill(msgspec.Struct, frozen=True, tag="kill"):
    """Send one worker a signal."""

    rank: int
    signal: int


class AskStatus(msgspec.Struct, frozen=True, tag="ask-status"):
    """How is the job?"""


class AskView(msgspec.Struct, frozen=True, tag="ask-view"):
    """Everything that can be seen of the job."""

    lines_from: int = 0
    """Of what was printed, only lines from this number on."""


HostsRequest = AddHosts | RemoveHost | DrainHost | ListHosts | Scale | ScheduleBatch | Kill
FromClient = Launch | Show | Hide | Stop | HostsRequest | AskStatus | AskView

# --- from the daemon ------------------------------------------------------------------------------------------------


class Hidden(msgspec.Struct, frozen=True, tag="hidden"):
    """Nothing is written there any more."""


class TakenOver(msgspec.Struct, frozen=True, tag="taken-over"):
    """Another client shows the job now."""


class Unread(msgspec.Struct, frozen=True, tag="unread"):
    """Nobody reads what this client was to show."""


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """The job has ended; all that belongs to its output has been written."""

    exit_code: int
    report: str = ""
    rank: int | None = None
    shown: bool = True
    """Whether this client has been shown the last lines; otherwise they are in the job's directory, with this."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """It cannot be done: a `SpecError`."""

    message: str
    hint: str = ""


class Done(msgspec.Struct, frozen=True, tag="done"):
    """What happens now, in lines for people."""

    lines: tuple[str, ...]


class HostsAre(msgspec.Struct, frozen=True, tag="hosts-are"):
    """The hosts of the job."""

    rows: tuple[HostRow, ...]


class StatusIs(msgspec.Struct, frozen=True, tag="status-is"):
    """How the job is; see `control.Status`."""

    size: int
    generation: int
    waits_for: str
    steps_per_second: float | None = None
    measures: tuple[Measures, ...] = ()
    scheduled_batch: int = 0


class ViewIs(msgspec.Struct, frozen=True, tag="view-is"):
    """What can be seen of the job."""

    view: JobView


FromDaemon = Hidden | TakenOver | Unread | Ended | Refused | Done | HostsAre | StatusIs | ViewIs

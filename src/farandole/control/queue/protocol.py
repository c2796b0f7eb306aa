"""What the queue's daemon is asked over its Unix socket: one request a connection, one answer, in frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from farandole.control.jobs.errors import KINDS, JobError

MESSAGE_LIMIT = 32 * 1024 * 1024
LOG_BYTES = 1024 * 1024
"""Of a piece of a log, at most: a shorter one is all that there is."""


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """Take a job."""

    spec: Mapping[str, Any]
    environment: Mapping[str, str]
    directory: str
    key: str
    """Made up for this job: a request that comes twice is one job."""


class AskJobs(msgspec.Struct, frozen=True, tag="jobs"):
    """Which jobs are there?"""


class AskJob(msgspec.Struct, frozen=True, tag="job"):
    """How is this job?"""

    name: str


class Change(msgspec.Struct, frozen=True, tag="change"):
    """Do something with a job.

    Attributes:
        verb: `cancel`, `suspend`, `resume` or `scale`.
        key: made up for this change: a request that comes twice is one change. To cancel twice is to kill.
    """

    verb: str
    name: str
    workers: int = 0
    key: str = ""


class ReadLog(msgspec.Struct, frozen=True, tag="log"):
    """Return the next piece of what a job printed, from a place in an attempt's log."""

    name: str
    attempt: int
    """0: the last one."""
    offset: int


class AskQueue(msgspec.Struct, frozen=True, tag="queue"):
    """How is the queue?"""


class Configure(msgspec.Struct, frozen=True, tag="configure"):
    """Change settings; each text is `KEY=VALUE`."""

    texts: tuple[str, ...]


class ChangeHosts(msgspec.Struct, frozen=True, tag="hosts"):
    """Change which hosts there are.

    Attributes:
        verb: `add`, `drain` or `remove`.
        hosts: for `add`, as `parse_queue_hosts` takes them; else names.
    """

    verb: str
    hosts: tuple[str, ...]


class MakeToken(msgspec.Struct, frozen=True, tag="token"):
    """Make a token for a user; or take all of theirs back."""

    user: str
    revoke: bool = False


class Backup(msgspec.Struct, frozen=True, tag="backup"):
    """Copy the database to a file."""

    path: str


class StopQueue(msgspec.Struct, frozen=True, tag="stop"):
    """End the daemon; jobs go on."""


Ask = Submit | AskJobs | AskJob | Change | ReadLog | AskQueue | Configure | ChangeHosts | MakeToken | Backup | StopQueue


class Request(msgspec.Struct, frozen=True):
    """A request, and a token if the user is not to be whom the kernel says."""

    ask: Ask
    token: str = ""


class LogPiece(msgspec.Struct, frozen=True):
    """A piece of a log."""

    data: bytes
    attempt: int
    """Where to go on; a new one when this one has no more."""
    offset: int
    is_over: bool
    """Whether nothing more will come."""


class Answer(msgspec.Struct, frozen=True):
    """What was asked for, or why it is not done."""

    result: Any = None
    error: str = ""
    """The name of a kind of `JobError`."""
    message: str = ""
    hint: str = ""

    def unpack(self) -> Any:
        """Return the result.

        Raises:
            JobError: it was not done.
        """
        if self.error:
            raise KINDS.get(self.error, JobError)(self.message, self.hint)
        return self.result


def refusal(error: JobError) -> Answer:
    return Answer(error=type(error).__name__, message=error.message, hint=error.hint)

"""The protocol of the queue's Unix socket: one request and one answer per connection, in frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from farandole.control.jobs.errors import KINDS, JobError

MESSAGE_LIMIT = 32 * 1024 * 1024
LOG_BYTES = 1024 * 1024
"""Size of a piece of a log, in bytes; a shorter piece ends at the present end of the log."""


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """Submit a job."""

    spec: Mapping[str, Any]
    environment: Mapping[str, str]
    directory: str
    key: str
    """Chosen for this job by the client: a repeated request creates no second job."""


class AskJobs(msgspec.Struct, frozen=True, tag="jobs"):
    """Return the status of all jobs."""


class AskJob(msgspec.Struct, frozen=True, tag="job"):
    """Return the status of one job."""

    name: str


class ChangeJob(msgspec.Struct, frozen=True, tag="change"):
    """Change a job.

    Attributes:
        verb: `cancel`, `suspend`, `resume` or `scale`.
        key: chosen for this change by the client: a repeated request does not count twice. Cancelling twice kills.
    """

    verb: str
    name: str
    workers: int = 0
    key: str = ""


class ReadLog(msgspec.Struct, frozen=True, tag="log"):
    """Return the next piece of a job's output, from an offset in an attempt's log."""

    name: str
    attempt: int
    """0 means the last one."""
    offset: int


class AskQueue(msgspec.Struct, frozen=True, tag="queue"):
    """Return the hosts, the settings and the number of jobs in each state."""


class Configure(msgspec.Struct, frozen=True, tag="configure"):
    """Change settings; each text is `KEY=VALUE`."""

    texts: tuple[str, ...]


class ChangeHosts(msgspec.Struct, frozen=True, tag="hosts"):
    """Change the queue's hosts.

    Attributes:
        verb: `add`, `drain` or `remove`.
        hosts: for `add`, in the form that `parse_queue_hosts` reads; otherwise names.
    """

    verb: str
    hosts: tuple[str, ...]


class MakeToken(msgspec.Struct, frozen=True, tag="token"):
    """Make a token for a user, or revoke all tokens of that user."""

    user: str
    revoke: bool = False


class Backup(msgspec.Struct, frozen=True, tag="backup"):
    """Copy the database to a file."""

    path: str


class StopQueue(msgspec.Struct, frozen=True, tag="stop"):
    """End the daemon; jobs continue."""


Ask = (
    Submit
    | AskJobs
    | AskJob
    | ChangeJob
    | ReadLog
    | AskQueue
    | Configure
    | ChangeHosts
    | MakeToken
    | Backup
    | StopQueue
)


class QueueRequest(msgspec.Struct, frozen=True):
    """A request, with a token if the user is not the one that the kernel reports."""

    ask: Ask
    token: str = ""


class LogPiece(msgspec.Struct, frozen=True):
    """A piece of a log."""

    data: bytes
    attempt: int
    """The position to continue from: a later attempt when this one has no more output."""
    offset: int
    is_over: bool
    """Whether no more output will come."""


class QueueAnswer(msgspec.Struct, frozen=True):
    """The result of a request, or the error with which it failed."""

    result: Any = None
    error: str = ""
    """The name of a class of `JobError`."""
    message: str = ""
    hint: str = ""

    def unpack(self) -> Any:
        """Return the result.

        Raises:
            JobError: the request failed.
        """
        if self.error:
            raise KINDS.get(self.error, JobError)(self.message, self.hint)
        return self.result


def refusal(error: JobError) -> QueueAnswer:
    return QueueAnswer(error=type(error).__name__, message=error.message, hint=error.hint)

"""What the launcher and its agents say to each other, in frames, over the agent's standard input and output.

No proof is needed: nobody else holds the ends of these pipes.

Output is under flow control. Of each stream of each worker the agent sends at most `WINDOW` bytes ahead of what the
launcher has written; `Credit` says how much more that is now. So a reader who is slow costs a bounded amount of memory
and slows down only the workers that print.
"""

from __future__ import annotations

import msgspec

WINDOW = 256 * 1024

STDOUT = 1
STDERR = 2


# --- to an agent ---------------------------------------------------------------------------------------------


class Start(msgspec.Struct, frozen=True, tag="start"):
    """Start a worker. Answered by `Started` or `NotStarted`."""

    rank: int
    command: tuple[str, ...]
    environment: dict[str, str]
    """All of it: the worker inherits nothing from the agent."""
    directory: str


class Credit(msgspec.Struct, frozen=True, tag="credit"):
    """So many more bytes of that stream were written and may follow."""

    rank: int
    stream: int
    count: int


class End(msgspec.Struct, frozen=True, tag="end"):
    """End all workers and everything they started: SIGTERM, and SIGKILL after `grace` seconds. Answered by `Ended`.

    A second one with less grace makes it shorter.
    """

    grace: float


# --- from an agent -------------------------------------------------------------------------------------------


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The worker runs."""

    rank: int
    pid: int


class NotStarted(msgspec.Struct, frozen=True, tag="not-started"):
    """The operating system refused to start the worker."""

    rank: int
    reason: str


class Output(msgspec.Struct, frozen=True, tag="output"):
    """The worker wrote something."""

    rank: int
    stream: int
    data: bytes


class Closed(msgspec.Struct, frozen=True, tag="closed"):
    """Nothing more will come on that stream."""

    rank: int
    stream: int


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    """The worker's process ended. Its output, and what it started, may live on."""

    rank: int
    code: int
    """Exit code, or minus the number of the signal that ended it."""


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """Nothing of the job is left on this host, except processes that even SIGKILL did not end. The last message."""

    survivors: tuple[int, ...] = ()


ToAgent = Start | Credit | End
FromAgent = Started | NotStarted | Output | Closed | Exited | Ended

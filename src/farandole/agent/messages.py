"""What the launcher and its agents say to each other, in frames, over the agent's standard input and output.

No proof is needed: nobody else holds the ends of these pipes.

Output is under flow control. Of each stream of each worker the agent sends at most `WINDOW` bytes ahead of what the
launcher has written; `Credit` says how much more that is now. So a reader who is slow costs a bounded amount of memory
and slows down only the workers that print.

Files are under flow control as well: the launcher keeps count of the pieces that the agent has not taken yet.
"""

from __future__ import annotations

import msgspec

WINDOW = 256 * 1024

STDOUT = 1
STDERR = 2

PIECE_BYTES = 256 * 1024
"""Most bytes of a file in one message: small enough that an agent is never long at one."""


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


# --- files -----------------------------------------------------------------------------------------------------
#
# The launcher offers a tree, a batch of entries at a time; the agent answers each `Offer` with `Lacking`. After the
# last one the launcher sends what is lacking, in pieces, and the agent answers each `Piece` with `Received`. When all
# is there, which may be at once, the agent lays the tree out and says `Shipped`; or `NotShipped`, at any time.
#
# Paths are bytes, relative to the tree's root, because nothing else can say every name that a file may have.


class File(msgspec.Struct, frozen=True, array_like=True, tag="file"):
    """A regular file of a tree."""

    path: bytes
    size: int
    executable: bool
    modified_ns: int
    """Since the epoch. The file on the host gets it too."""
    digest: bytes
    """SHA-256 of the content, 32 bytes."""


class Link(msgspec.Struct, frozen=True, array_like=True, tag="link"):
    """A symbolic link of a tree."""

    path: bytes
    target: bytes


class Directory(msgspec.Struct, frozen=True, array_like=True, tag="directory"):
    """A directory of a tree that would not be there without it, because nothing of the tree is in it."""

    path: bytes


Entry = File | Link | Directory


class Offer(msgspec.Struct, frozen=True, tag="offer"):
    """A part of the tree that the workers are to run in. Answered by `Lacking`."""

    job: str
    """Id of the job; the tree is its own."""
    name: str
    """What the tree's root is called."""
    cache: str
    """The directory for what is shipped; "" is farandole/ship in the user's cache directory."""
    entries: tuple[Entry, ...]
    last: bool


class Piece(msgspec.Struct, frozen=True, tag="piece"):
    """Bytes of a file that is lacking. Answered by `Received`."""

    digest: bytes
    """Of the whole file."""
    offset: int
    """Of its first byte in the file; pieces of a file come in order."""
    data: bytes
    packed: bool
    """Whether the data is compressed by zlib."""


class Lacking(msgspec.Struct, frozen=True, tag="lacking"):
    """What of the files of an `Offer` is not on this host, and no earlier `Lacking` has named."""

    files: tuple[tuple[bytes, int], ...]
    """Digest, and how many bytes of the file are here already: what an interrupted job left."""


class Received(msgspec.Struct, frozen=True, tag="received"):
    """One more piece was taken, in the order they were sent."""


class Damaged(msgspec.Struct, frozen=True, tag="damaged"):
    """What came of that file is not what was offered, and was thrown away. It should be sent from its beginning."""

    digest: bytes


class Shipped(msgspec.Struct, frozen=True, tag="shipped"):
    """The whole tree is here."""

    directory: str
    """Its root."""


class NotShipped(msgspec.Struct, frozen=True, tag="not-shipped"):
    """The tree cannot be had on this host. Nothing more is taken."""

    reason: str
    hint: str


ToAgent = Start | Credit | End | Offer | Piece
FromAgent = (
    Started | NotStarted | Output | Closed | Exited | Ended | Lacking | Received | Damaged | Shipped | NotShipped
)

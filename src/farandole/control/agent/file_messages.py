"""The messages about files.

The launcher offers a tree, a batch of entries at a time; the agent answers each `Offer` with `Lacking`. After the
last one the launcher sends the missing files in pieces, and the agent answers each `Piece` with `Received`. When all
files are there, which may be at once, the agent lays the tree out and sends `Shipped`; or `NotShipped`, at any time.

Paths are bytes, relative to the tree's root, because no other type can express every file name.
"""

from __future__ import annotations

import msgspec

PIECE_BYTES = 256 * 1024
"""Maximum number of bytes of a file in one message: small enough that a message does not occupy an agent for long."""


class File(msgspec.Struct, frozen=True, array_like=True, tag="file"):
    """A regular file of a tree."""

    path: bytes
    size: int
    executable: bool
    modified_ns: int
    """Nanoseconds since the epoch; also set for the file on the host."""
    digest: bytes
    """SHA-256 of the content, 32 bytes."""


class Link(msgspec.Struct, frozen=True, array_like=True, tag="link"):
    """A symbolic link of a tree."""

    path: bytes
    target: bytes


class Directory(msgspec.Struct, frozen=True, array_like=True, tag="directory"):
    """An empty directory of a tree."""

    path: bytes


Entry = File | Link | Directory


class Offer(msgspec.Struct, frozen=True, tag="offer"):
    """A part of the tree that the workers run in. Answered by `Lacking`."""

    job: str
    """Id of the job, which owns the tree."""
    name: str
    """Name of the tree's root."""
    cache: str
    """The directory for shipped files; "" is farandole/ship in the user's cache directory."""
    entries: tuple[Entry, ...]
    last: bool


class Piece(msgspec.Struct, frozen=True, tag="piece"):
    """A piece of a missing file. Answered by `Received`."""

    digest: bytes
    """Digest of the whole file."""
    offset: int
    """Offset of its first byte in the file; pieces of a file come in order."""
    data: bytes
    packed: bool
    """Whether the data is compressed by zlib."""


class Lacking(msgspec.Struct, frozen=True, tag="lacking"):
    """The files of an `Offer` that are not on this host, and that no earlier `Lacking` has named."""

    files: tuple[tuple[bytes, int], ...]
    """Digest of each file, and the number of its bytes that an interrupted job has already received."""


class Received(msgspec.Struct, frozen=True, tag="received"):
    """One more piece was received, in order."""


class Damaged(msgspec.Struct, frozen=True, tag="damaged"):
    """The received content of that file was wrong, and was dropped. It must be sent from its beginning."""

    digest: bytes


class Shipped(msgspec.Struct, frozen=True, tag="shipped"):
    """The whole tree is in place."""

    directory: str
    """Root of the tree."""


class NotShipped(msgspec.Struct, frozen=True, tag="not-shipped"):
    """The tree cannot be created on this host. No more messages about it are accepted."""

    reason: str
    hint: str


ToFiles = Offer | Piece

FromFiles = Lacking | Received | Damaged | Shipped | NotShipped

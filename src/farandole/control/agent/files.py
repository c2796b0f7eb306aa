"""Receives the directory tree that the workers of this host run in, and creates it.

`Receiver` implements `control.agent.file_messages`. It opens no connection and never blocks for
long: messages are small, and long work (checking, copying, pruning) is done in slices, by `step`. `Files` runs it in
the agent's loop.

A file's content arrives in the cache (`control.agent.cache`) and becomes an object when its hash is correct. The tree
contains copies, not links: workers may write into their working directory, and must not change the files of the next
job. On file systems with reflinks, a copy shares its blocks with the object until one of them is written.
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec

from farandole.control.agent.cache import Cache, OwnFile, Tree, default_directory
from farandole.control.agent.event_loop import Loop
from farandole.control.agent.file_messages import (
    PIECE_BYTES,
    Damaged,
    Directory,
    Entry,
    File,
    FromFiles,
    Lacking,
    Link,
    NotShipped,
    Offer,
    Piece,
    Received,
    Shipped,
    ToFiles,
)

if TYPE_CHECKING:
    from hashlib import _Hash

_SLICE_SECONDS = 0.005
_SLICE_BYTES = 4 * 1024 * 1024
# Maximum number of partial files of interrupted jobs that are resumed. Each stays open from the offer on.
_MOST_RESUMED = 64
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
# The errors of copy_file_range which mean that it cannot be used here; others are failures.
_CANNOT_COPY = (errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF)


class _Arriving:
    """A file of the tree that is not in the cache yet."""

    def __init__(self, size: int, partial: OwnFile | None) -> None:
        self.size = size
        self.partial = partial
        """The file that its content is written to; None before the first byte."""
        self.have = 0 if partial is None else partial.size()
        self.hash: _Hash | None = None if self.have else hashlib.sha256()
        """The hash of the content so far; None if a part of it was received for an earlier job."""
        self.broken = False
        """Whether the remaining data is useless, so that the file must be sent again from its beginning."""


class Receiver:
    """Receives one tree for one job.

    Args:
        cache: the cache directory if the launcher names none. Set only by tests.
    """

    def __init__(self, cache: bytes | None = None) -> None:
        self._directory = cache or default_directory()
        self._cache: Cache | None = None
        self._tree: Tree | None = None
        self._name = ""
        self._entries: list[Entry] = []
        self._lacking: dict[bytes, _Arriving] = {}
        self._resumed = 0
        """Number of partial files of an earlier job that were resumed."""
        self._all_offered = False
        self._placing = False
        self._failed = False
        self._tasks: deque[Iterator[FromFiles | None]] = deque()

    @property
    def busy(self) -> bool:
        """Whether `step` has work to do."""
        return bool(self._tasks)

    def carry_out(self, order: ToFiles) -> list[FromFiles]:
        """Carry out an order and return the answers."""
        if self._failed:
            return []
        try:
            return self._offered(order) if isinstance(order, Offer) else self._arrived(order)
        except OSError as error:
            return [self._fail(_reason(error), self._hint(error))]

    def step(self) -> list[FromFiles]:
        """Work for a few milliseconds, and return the messages for the launcher."""
        said: list[FromFiles] = []
        enough = time.monotonic() + _SLICE_SECONDS
        while self._tasks:
            try:
                message = next(self._tasks[0])
            except StopIteration:
                self._tasks.popleft()
            except OSError as error:
                return [*said, self._fail(_reason(error), self._hint(error))]
            else:
                if message is not None:
                    said.append(message)
            if time.monotonic() >= enough:
                break
        return said

    def close(self) -> None:
        """Release all files; partial content stays for a later job."""
        self._tasks.clear()
        for arriving in self._lacking.values():
            if arriving.partial is not None:
                arriving.partial.close()
        self._lacking.clear()
        if self._tree is not None:
            self._tree.close()
            self._tree = None

    def _fail(self, reason: str, hint: str) -> NotShipped:
        self._failed = True
        self.close()
        return NotShipped(reason, hint)

    def _hint(self, error: OSError) -> str:
        directory = os.fsdecode(self._directory)
        if error.errno in _NO_ROOM:
            return f"free disk space for {directory}, or name a directory with enough space with --ship-cache"
        return f"{directory} must be a directory that can be written to; --ship-cache names another one"

    # --- offers --------------------------------------------------------------------------------------------------

    def _offered(self, offer: Offer) -> list[FromFiles]:
        cache = self._open(offer)
        lacking = []
        for entry in offer.entries:
            if not _stays_inside(entry.path):
                return [self._fail(f"{os.fsdecode(entry.path)!r} is not a path within a tree", "")]
            if isinstance(entry, File) and self._lacks(cache, entry):
                arriving = _Arriving(entry.size, self._resumed_file(cache, entry))
                self._lacking[entry.digest] = arriving
                lacking.append((entry.digest, arriving.have))
                if arriving.have == arriving.size:
                    self._tasks.append(self._check_again(entry.digest, arriving))
        self._entries += offer.entries
        if offer.last:
            self._all_offered = True
            self._place_when_complete()
        return [Lacking(tuple(lacking))]

    def _open(self, offer: Offer) -> Cache:
        if self._cache is None:
            if offer.cache:
                self._directory = os.fsencode(os.path.abspath(os.path.expanduser(offer.cache)))
            self._cache = Cache(self._directory)
            self._tree = self._cache.new_tree(offer.job)
            self._name = offer.name
        return self._cache

    def _lacks(self, cache: Cache, file: File) -> bool:
        # A file without content needs no transfer.
        return file.size > 0 and file.digest not in self._lacking and not cache.has(file.digest, file.size)

    def _resumed_file(self, cache: Cache, file: File) -> OwnFile | None:
        if file.size <= PIECE_BYTES or self._resumed == _MOST_RESUMED:
            return None
        partial = cache.resume(file.digest)
        if partial is not None and partial.size() > file.size:
            partial.close()
            return None
        self._resumed += partial is not None
        return partial

    # --- transfers -----------------------------------------------------------------------------------------------

    def _arrived(self, piece: Piece) -> list[FromFiles]:
        said: list[FromFiles] = [Received()]
        arriving = self._lacking.get(piece.digest)
        if arriving is None or (arriving.broken and piece.offset > 0):
            return said
        arriving.broken = False
        data = _unpacked(piece)
        if data is None or piece.offset != arriving.have or arriving.have + len(data) > arriving.size:
            return [*said, self._begin_anew(piece.digest, arriving)]
        self._write(piece.digest, arriving, data)
        if arriving.have == arriving.size:
            if arriving.hash is None:
                self._tasks.append(self._check_again(piece.digest, arriving))
            else:
                said += self._check(piece.digest, arriving, arriving.hash.digest())
        return said

    def _write(self, digest: bytes, arriving: _Arriving, data: bytes) -> None:
        assert self._cache is not None
        if arriving.partial is None:
            arriving.partial = self._cache.begin(digest)
        view = memoryview(data)
        while view:
            count = os.pwrite(arriving.partial.fd, view, arriving.have)
            if arriving.hash is not None:
                arriving.hash.update(view[:count])
            arriving.have += count
            view = view[count:]

    def _begin_anew(self, digest: bytes, arriving: _Arriving) -> Damaged:
        if arriving.partial is not None:
            os.ftruncate(arriving.partial.fd, 0)
        arriving.have = 0
        arriving.hash = hashlib.sha256()
        arriving.broken = True
        return Damaged(digest)

    def _check(self, digest: bytes, arriving: _Arriving, found: bytes) -> list[FromFiles]:
        """Turn the received content into an object, if it has the offered digest."""
        assert self._cache is not None and arriving.partial is not None
        if found != digest:
            return [self._begin_anew(digest, arriving)]
        self._cache.add(arriving.partial, digest)
        del self._lacking[digest]
        self._place_when_complete()
        return []

    def _check_again(self, digest: bytes, arriving: _Arriving) -> Iterator[FromFiles | None]:
        """Check a file whose beginning an earlier job received."""
        assert arriving.partial is not None
        found = hashlib.sha256()
        offset = 0
        while data := os.pread(arriving.partial.fd, _SLICE_BYTES, offset):
            found.update(data)
            offset += len(data)
            yield None
        yield from self._check(digest, arriving, found.digest())

    # --- the tree -----------------------------------------------------------------------------------------------------

    def _place_when_complete(self) -> None:
        if self._all_offered and not self._lacking and not self._placing:
            self._placing = True
            self._tasks.append(self._place())

    def _place(self) -> Iterator[FromFiles | None]:
        assert self._cache is not None and self._tree is not None
        root = os.path.join(self._tree.path, os.fsencode(self._name))
        os.mkdir(root)
        made = {root}
        # Links last, so that nothing is ever written through one.
        for entry in sorted(self._entries, key=lambda entry: isinstance(entry, Link)):
            path = os.path.join(root, entry.path)
            _make_directories(path if isinstance(entry, Directory) else os.path.dirname(path), made)
            if isinstance(entry, File):
                yield from self._copy(entry, path)
            elif isinstance(entry, Link):
                os.symlink(entry.target, path)
            yield None
        self._tree.seal(tuple(self._entries))
        self._entries.clear()
        self._tasks.append(self._prune(self._cache))
        yield Shipped(os.fsdecode(root))

    def _copy(self, file: File, path: bytes) -> Iterator[None]:
        assert self._cache is not None
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o777 if file.executable else 0o666)
        try:
            if file.size > 0:
                source = os.open(self._cache.object(file.digest), os.O_RDONLY)
                try:
                    yield from _copy_content(source, target, file.size)
                finally:
                    os.close(source)
            os.utime(target, ns=(file.modified_ns, file.modified_ns))
        finally:
            os.close(target)

    def _prune(self, cache: Cache) -> Iterator[None]:
        try:
            yield from cache.prune(time.time())
        except (OSError, RecursionError, msgspec.DecodeError):
            return  # A cache that cannot be pruned does not fail a job.


class Files:
    """A receiver in the agent's loop.

    Args:
        loop: the event loop of the agent.
        say: sends a message to the launcher.
    """

    def __init__(self, loop: Loop, say: Callable[[FromFiles], None]) -> None:
        self._loop = loop
        self._say = say
        self._receiver = Receiver()
        self._going_on = False
        self._stopped = False

    def carry_out(self, order: ToFiles) -> None:
        """Carry out an order."""
        if self._stopped:
            return
        for message in self._receiver.carry_out(order):
            self._say(message)
        if not self._going_on:
            self._go_on()

    def stop(self) -> None:
        """Stop working. The tree stays locked: workers may still be in it."""
        self._stopped = True

    def _go_on(self) -> None:
        self._going_on = self._receiver.busy and not self._stopped
        if not self._going_on:
            return
        for message in self._receiver.step():
            self._say(message)
        self._loop.call_later(0, self._go_on)


def _copy_content(source: int, target: int, size: int) -> Iterator[None]:
    """Copy `size` bytes, a slice at each step; in the kernel if possible."""
    left = size
    in_kernel = True
    while left > 0:
        count = 0
        if in_kernel:
            try:
                count = os.copy_file_range(source, target, min(left, _SLICE_BYTES))
            except OSError as error:
                if error.errno not in _CANNOT_COPY:
                    raise
        if count == 0:
            in_kernel = False
            data = os.read(source, min(left, _SLICE_BYTES))
            if not data:
                raise OSError(errno.EIO, "the cache has changed while it was read")
            count = os.write(target, data)
            os.lseek(source, count - len(data), os.SEEK_CUR)
        left -= count
        yield


def _make_directories(path: bytes, made: set[bytes]) -> None:
    missing = []
    while path not in made:
        missing.append(path)
        path = os.path.dirname(path)
    for directory in reversed(missing):
        os.mkdir(directory)
        made.add(directory)


def _unpacked(piece: Piece) -> bytes | None:
    """Return the data of a piece; None if it is damaged."""
    if not piece.packed:
        return piece.data
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(piece.data, PIECE_BYTES)
    except zlib.error:
        return None
    return data if unpacker.eof else None


def _stays_inside(path: bytes) -> bool:
    return bool(path) and b"\0" not in path and not {b"", b".", b".."} & set(path.split(b"/"))


def _reason(error: OSError) -> str:
    what = error.strerror or str(error)
    return what if error.filename is None else f"{os.fsdecode(error.filename)}: {what}"

"""The cache, on one host, of files that launchers have sent.

    objects/ab/cdef...   the content of a file, named by its SHA-256. It is checked before it is renamed to here, so
                         an object that has its size is complete
    partial/abcdef...    incomplete content, perhaps of an interrupted job; locked by the agent that writes
                         it. Another agent that receives the same content writes abcdef....1, and so on
    trees/<job>/         the working directory of one job, with copies of objects: workers may write into it
        .farandole.lock      held by the agent while it lives: a locked tree is not pruned
        .farandole.placed    the entries of the tree; written once all of them are in place
        <name>/              the root of the tree

Objects need no lock: using one updates its time, and objects used within `UNTOUCHED_SECONDS` are not pruned.

Several agents may share one cache, also on several hosts with a shared home directory. On file systems without locks,
no lock is ever acquired: partial content is not resumed, and trees are not pruned.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator

from farandole.base.wire import encoding
from farandole.control.agent.file_messages import Entry, File, Link

KEPT_SECONDS = 30 * 24 * 3600.0
"""Seconds since their last use after which files are pruned."""
KEPT_BYTES = 10_000_000_000
"""Total size of the objects that are kept; beyond it, only those used within `UNTOUCHED_SECONDS` stay."""
UNTOUCHED_SECONDS = 24 * 3600.0
"""Seconds since their last use within which files may be in use, and are never pruned."""

_MARK_AGAIN_SECONDS = 3600.0
_FRESH_SECONDS = 60.0
_PARTIALS_AT_ONCE = 64
_LOCK = b".farandole.lock"
_PLACED = b".farandole.placed"
_NOTHING_PLACED = encoding.encode(())


def default_directory() -> bytes:
    """Return the default cache directory."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(os.fsencode(base), b"farandole", b"ship")


class OwnFile:
    """An open file that no other process writes while it is open."""

    def __init__(self, fd: int, path: bytes) -> None:
        self.fd = fd
        self.path = path

    def size(self) -> int:
        """Return its size in bytes."""
        return os.fstat(self.fd).st_size

    def close(self) -> None:
        """Close the file and release its lock."""
        os.close(self.fd)


class Tree:
    """The directory of one job's tree, which is not pruned while this object is open."""

    def __init__(self, path: bytes, lock: OwnFile | None) -> None:
        self.path = path
        self._lock = lock

    def seal(self, entries: tuple[Entry, ...]) -> None:
        """Record that all entries are in place."""
        _write(os.path.join(self.path, _PLACED), encoding.encode(entries))

    def close(self) -> None:
        """Allow pruning of the tree."""
        if self._lock is not None:
            self._lock.close()


class Cache:
    """The cached files in `directory`."""

    def __init__(self, directory: bytes) -> None:
        self.directory = directory
        self._objects = os.path.join(directory, b"objects")
        self._partial = os.path.join(directory, b"partial")
        self._trees = os.path.join(directory, b"trees")
        for path in (self._objects, self._partial, self._trees):
            os.makedirs(path, mode=0o700, exist_ok=True)

    # --- objects --------------------------------------------------------------------------------------------------

    def object(self, digest: bytes) -> bytes:
        """Return the path of the object with that digest, whether or not it exists."""
        name = digest.hex().encode()
        return os.path.join(self._objects, name[:2], name[2:])

    def has(self, digest: bytes, size: int) -> bool:
        """Return whether that object exists; if so, mark it as used."""
        path = self.object(digest)
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return False
        if found.st_size != size:
            return False  # The host crashed before the renamed content was on its disk.
        if found.st_mtime < time.time() - _MARK_AGAIN_SECONDS:
            os.utime(path)
        return True

    def add(self, partial: OwnFile, digest: bytes) -> None:
        """Turn checked content into an object."""
        path = self.object(digest)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        os.fchmod(partial.fd, 0o400)
        os.utime(partial.fd)
        os.rename(partial.path, path)
        partial.close()

    # --- partial content --------------------------------------------------------------------------------------------

    def resume(self, digest: bytes) -> OwnFile | None:
        """Return the partial content of a file that an earlier job left, locked; None if there is none to lock."""
        partial = _lock(self._partial_path(digest, 0), os.O_RDWR)
        if partial is not None and partial.size() == 0:
            partial.close()
            return None
        return partial

    def begin(self, digest: bytes) -> OwnFile:
        """Return a new, locked file for the content with that digest."""
        for number in range(_PARTIALS_AT_ONCE):
            partial = _lock(self._partial_path(digest, number), os.O_RDWR | os.O_CREAT)
            if partial is not None:
                os.ftruncate(partial.fd, 0)
                return partial
        # There are no locks here, or too many agents.
        path = self._partial_path(digest, os.getpid()) + b"." + os.urandom(4).hex().encode()
        return OwnFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), path)

    def _partial_path(self, digest: bytes, number: int) -> bytes:
        name = digest.hex().encode()
        return os.path.join(self._partial, name if number == 0 else name + b".%d" % number)

    # --- trees ------------------------------------------------------------------------------------------------------

    def new_tree(self, job: str) -> Tree:
        """Create the directory for a job's tree."""
        number = 0
        while True:
            name = os.fsencode(job if number == 0 else f"{job}.{number}")
            path = os.path.join(self._trees, name)
            try:
                os.mkdir(path, 0o700)
                break
            except FileExistsError:
                number += 1  # Several agents of the job share this cache.
        return Tree(path, _lock(os.path.join(path, _LOCK), os.O_RDWR | os.O_CREAT))

    # --- pruning ----------------------------------------------------------------------------------------------------

    def prune(self, now: float) -> Iterator[None]:
        """Remove files that are no longer needed, a few at each step.

        In the tree of a job that has ended, shipped files are removed; files of workers stay for `KEPT_SECONDS`.
        """
        yield from self._prune_objects(now)
        yield from self._prune_partials(now)
        for name in _list(self._trees):
            yield from self._prune_tree(os.path.join(self._trees, name), now)

    def _prune_objects(self, now: float) -> Iterator[None]:
        found: list[tuple[float, int, bytes]] = []
        for folder in _list(self._objects):
            for name in _list(os.path.join(self._objects, folder)):
                path = os.path.join(self._objects, folder, name)
                if (entry := _lstat(path)) is not None:
                    found.append((entry.st_mtime, entry.st_size, path))
            yield
        kept_bytes = 0
        for used, size, path in sorted(found, reverse=True):
            kept_bytes += size
            age = now - used
            if age > UNTOUCHED_SECONDS and (age > KEPT_SECONDS or kept_bytes > KEPT_BYTES):
                kept_bytes -= size
                _remove(path)
                yield

    def _prune_partials(self, now: float) -> Iterator[None]:
        for name in _list(self._partial):
            path = os.path.join(self._partial, name)
            entry = _lstat(path)
            if entry is None or now - entry.st_mtime <= KEPT_SECONDS:
                continue
            partial = _lock(path, os.O_RDWR)
            if partial is not None:
                _remove(path)
                partial.close()
            yield

    def _prune_tree(self, tree: bytes, now: float) -> Iterator[None]:
        entry = _lstat(tree)
        if entry is None or now - entry.st_mtime < _FRESH_SECONDS:
            return  # An agent may be about to lock it.
        lock = _lock(os.path.join(tree, _LOCK), os.O_RDWR | os.O_CREAT)
        if lock is None:
            return
        try:
            yield from self._strip(tree, now)
        finally:
            lock.close()

    def _strip(self, tree: bytes, now: float) -> Iterator[None]:
        """Remove the shipped files of a tree, and the whole tree if it has no other files or is old."""
        placed = os.path.join(tree, _PLACED)
        sealed = _lstat(placed)
        if sealed is None or now - sealed.st_mtime > KEPT_SECONDS:
            yield from _remove_all(tree)
            return
        with open(placed, "rb") as file:
            entries = encoding.decode(file.read(), tuple[Entry, ...])
        roots = [os.path.join(tree, name) for name in _list(tree) if name not in (_LOCK, _PLACED)]
        shipped = {os.path.join(root, entry.path): entry for root in roots for entry in entries}
        for root in roots:
            # By the files that exist, not by those that were shipped: a worker may have replaced a directory by a link.
            for directory, directories, files in os.walk(root, topdown=False):
                for name in (*directories, *files):
                    path = os.path.join(directory, name)
                    if _is_as_shipped(path, shipped.get(path)):
                        _remove(path)
                    yield
                _remove(directory)  # Only if it is empty.
        if not any(_exists(root) for root in roots):
            yield from _remove_all(tree)
        elif entries:
            _write(placed, _NOTHING_PLACED)


def _lock(path: bytes, flags: int) -> OwnFile | None:
    """Open and lock a file; return None if it is locked elsewhere, cannot be locked, or does not exist."""
    try:
        fd = os.open(path, flags, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_ino == os.stat(path).st_ino:
            return OwnFile(fd, path)
    except OSError as error:
        # Another process has the lock, or there are no locks here; or the file was renamed before it was locked.
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOENT):
            os.close(fd)
            raise
    os.close(fd)
    return None


def _write(path: bytes, data: bytes) -> None:
    """Write a file atomically."""
    new = path + b".new"
    with open(new, "wb") as file:
        file.write(data)
    os.rename(new, path)


def _list(path: bytes) -> list[bytes]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _lstat(path: bytes) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _exists(path: bytes) -> bool:
    return _lstat(path) is not None


def _remove(path: bytes) -> None:
    """Remove a file or an empty directory, if possible: another agent may have removed it already."""
    entry = _lstat(path)
    if entry is None:
        return
    try:
        if stat.S_ISDIR(entry.st_mode):
            os.rmdir(path)
        else:
            os.unlink(path)
    except OSError:
        return


def _is_as_shipped(path: bytes, entry: Entry | None) -> bool:
    found = _lstat(path)
    if found is None:
        return False
    if isinstance(entry, File):
        return stat.S_ISREG(found.st_mode) and (found.st_size, found.st_mtime_ns) == (entry.size, entry.modified_ns)
    return isinstance(entry, Link) and stat.S_ISLNK(found.st_mode) and os.readlink(path) == entry.target


def _remove_all(root: bytes) -> Iterator[None]:
    # The content of a directory comes before the directory. Links to directories are listed, but not followed.
    for directory, directories, files in os.walk(root, topdown=False):
        for name in (*directories, *files):
            _remove(os.path.join(directory, name))
            yield
        _remove(directory)

"""The files that `--ship` sends: those of a directory that git would not ignore, each with its hash.

`build_manifest` walks the directory. Links stay links: one that points out of the directory keeps its target, as an
absolute path, since data often has the same path on all hosts; a note says so. `.git` is never sent.

Hashes are kept between runs, so that unchanged files are not read again. A file counts as unchanged if its size, its
times and its inode are the same. The times include the ctime, which programs cannot set.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import msgspec

from farandole.base.display.wording import SIZE_UNITS
from farandole.base.wire import encoding
from farandole.control.agent.file_messages import Directory, Entry, File, Link
from farandole.control.launcher.job.ssh_and_ship import ShipLimit
from farandole.control.launcher.output.logs import is_output_folder
from farandole.control.launcher.ship.ignore import Rules, decide, entered, outer_rules, tracked_though_ignored
from farandole.errors import SpecError

_READ_BYTES = 1024 * 1024
# Number of files and directories that a message names.
_MOST_NAMED = 3
# A file that was changed just before it was hashed may change again without a new time: file system clocks are coarse,
# some have steps of 2 s.
_TICK_NS = 2_000_000_000
_HASHES_KEPT_SECONDS = 30 * 24 * 3600.0


@dataclass(frozen=True)
class Manifest:
    """The content of a directory at one moment."""

    root: bytes
    """The directory, as an absolute path without links."""
    entries: tuple[Entry, ...]
    notes: tuple[str, ...] = ()
    """Notes for the user about entries that are not sent as they are."""
    files: dict[bytes, File] = field(default_factory=dict)
    """For each digest, one file with that content."""
    output: bytes | None = None
    """The directory for the output of workers, as a path relative to the root; None: it is not there."""

    @property
    def name(self) -> str:
        """The name of the directory on the hosts."""
        return os.fsdecode(os.path.basename(self.root)).encode("utf-8", "replace").decode() or "root"

    @property
    def size(self) -> int:
        """Total size of all different contents, in bytes."""
        return sum(file.size for file in self.files.values())

    def path_of(self, file: File) -> bytes:
        """Return the path of a file."""
        return os.path.join(self.root, file.path)

    def is_output(self, path: bytes) -> bool:
        """Return whether a path, relative to the root, leads to output of workers, which is never sent."""
        return _is_output(path, self.output)


def build_manifest(
    directory: str, limit: ShipLimit | None = None, hashes: Hashes | None = None, output: str = ""
) -> Manifest:
    """Return the manifest of a directory. This reads files, so it may take long.

    Args:
        directory: the directory to send.
        limit: the limits of size and number of files.
        hashes: the hashes of earlier runs; without them, every file is read.
        output: the directory into which the launcher writes the output of workers. That is of no use on the hosts, and
            changes while it is sent.

    Raises:
        SpecError: the path is not a directory, it exceeds the limit, a part of it cannot be read, or it has no files
            to send.
    """
    root = os.fsencode(os.path.realpath(directory))
    if not os.path.isdir(root):
        raise SpecError(f"--ship {directory} is not a directory", "use --ship . for the current directory")
    outputs = _relative(root, output) if output else None
    walk = _Walk(root, limit or ShipLimit(), outputs)
    walk.run()
    walk.check_size()
    if not walk.found:
        raise SpecError(
            f"there is nothing to send in {directory}: it is empty, or git ignores all its files",
            "to see which rules ignore them, run there: git check-ignore -v *",
        )
    digests = hashes or Hashes()
    files = [_file(root, path, digests) for path in walk.files]
    digests.save()
    entries: list[Entry] = [*files, *walk.links, *walk.directories]
    entries.sort(key=lambda entry: entry.path)
    return Manifest(root, tuple(entries), tuple(walk.notes), _by_digest(files), outputs)


def without_written(manifest: Manifest, written: Iterable[str]) -> Manifest:
    """Return a manifest without the files that workers have written or deleted since it was made. This may take long.

    Other files that have changed are an error when they are sent: hosts would run different code.

    Args:
        manifest: the manifest of a job whose workers may run already.
        written: the files and directories that workers write. A file may have one for each generation of the world.
    """
    paths = [path for each in written if (path := _relative(manifest.root, each)) is not None]
    parts = [os.path.splitext(path) for path in paths]
    patterns = [re.escape(stem) + rb"(\.\d+)?" + re.escape(suffix) + rb"(/.*)?" for stem, suffix in parts]
    is_written = re.compile(b"|".join(patterns), re.DOTALL).fullmatch

    def stays(entry: Entry) -> bool:
        if not (patterns and isinstance(entry, File) and is_written(entry.path)):
            return True
        try:
            found = os.stat(manifest.path_of(entry), follow_symlinks=False)
        except OSError:
            return False
        return (found.st_size, found.st_mtime_ns) == (entry.size, entry.modified_ns)

    entries = tuple(filter(stays, manifest.entries))
    return replace(manifest, entries=entries, files=_by_digest(entries))


def _by_digest(entries: Iterable[Entry]) -> dict[bytes, File]:
    return {entry.digest: entry for entry in entries if isinstance(entry, File) and entry.size}


def _relative(root: bytes, directory: str) -> bytes | None:
    """Return a directory as a path relative to the root; None if it is elsewhere."""
    relative = os.path.relpath(os.path.realpath(os.fsencode(directory)), root)
    return None if relative.split(b"/")[0] == b".." else relative


def _is_output(path: bytes, output: bytes | None) -> bool:
    return output is not None and is_output_folder(os.fsdecode(os.path.relpath(path, output).split(b"/")[0]))


class Hashes:
    """Digests of files in known states, kept in a file of the user's cache.

    Args:
        path: the cache file; without it, nothing is kept.
    """

    def __init__(self, path: str | None = None) -> None:
        self._path = path
        self._known: dict[bytes, _Known] = {} if path is None else _load(path)
        self._seen: dict[bytes, _Known] = {}

    @classmethod
    def of(cls, directory: str) -> Hashes:
        """Return the known digests of a directory's files."""
        name = hashlib.sha256(os.fsencode(os.path.realpath(directory))).hexdigest()[:32]
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        return cls(os.path.join(base, "farandole", "ship", "hashes", name))

    def digest(self, path: bytes) -> tuple[bytes, os.stat_result]:
        """Return the SHA-256 of a file's content, and the state in which the file had that content.

        Raises:
            OSError: the file cannot be read.
            SpecError: the file keeps changing.
        """
        before = os.stat(path, follow_symlinks=False)
        known = self._known.get(path)
        if known is None or known.state != _state(before):
            known = _Known(_state(before), _digest(path))
            if _state(os.stat(path, follow_symlinks=False)) != known.state:
                raise SpecError(f"{os.fsdecode(path)} changed while it was read", "run again when nothing writes to it")
        if time.time_ns() - max(before.st_mtime_ns, before.st_ctime_ns) > _TICK_NS:
            self._seen[path] = known
        return known.digest, before

    def save(self) -> None:
        """Store the digests that were used, and forget the others."""
        if self._path is None or self._seen == self._known:
            return
        folder = os.path.dirname(self._path)
        new = f"{self._path}.{os.getpid()}"
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            with open(new, "wb") as file:
                file.write(encoding.encode(self._seen))
            os.replace(new, self._path)
            _forget_old(folder)
        except OSError:
            return  # Without a cache: it only saves time.


class _Known(msgspec.Struct, frozen=True, array_like=True):
    state: tuple[int, int, int, int]
    digest: bytes


def _state(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def _load(path: str) -> dict[bytes, _Known]:
    try:
        with open(path, "rb") as file:
            known: dict[bytes, _Known] = encoding.decode(file.read(), dict[bytes, _Known])
            return known
    except (OSError, msgspec.DecodeError):
        return {}


def _forget_old(folder: str) -> None:
    for entry in os.scandir(folder):
        if time.time() - entry.stat().st_mtime > _HASHES_KEPT_SECONDS:
            os.unlink(entry.path)


def _digest(path: bytes) -> bytes:
    found = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while data := file.read(_READ_BYTES):
            found.update(data)
    return found.digest()


def _file(root: bytes, path: bytes, hashes: Hashes) -> File:
    try:
        digest, found = hashes.digest(os.path.join(root, path))
    except OSError as error:
        raise _unreadable(path, error) from None
    return File(path, found.st_size, bool(found.st_mode & stat.S_IXUSR), found.st_mtime_ns, digest)


def _unreadable(path: bytes, error: OSError) -> SpecError:
    name = os.fsdecode(path)
    return SpecError(
        f"--ship: {name} cannot be read: {error.strerror}",
        f"make it readable, or exclude it: add /{name} to .gitignore",
    )


# --- the walk -------------------------------------------------------------------------------------------------------


class _Walk:
    """Collects the files of the directory `root` to send, as paths relative to it."""

    def __init__(self, root: bytes, limit: ShipLimit, output: bytes | None) -> None:
        self._root = root
        self._limit = limit
        self._output = output
        self._sizes: dict[bytes, int] = {}
        self.links: list[Link] = []
        self.directories: list[Directory] = []
        self.notes: list[str] = []

    @property
    def files(self) -> Iterable[bytes]:
        return self._sizes

    @property
    def found(self) -> bool:
        return bool(self._sizes or self.links or self.directories)

    def run(self) -> None:
        todo = [(b"", outer_rules(self._root))]
        while todo:
            directory, rules = todo.pop()
            todo += self._directory(directory, rules)
        for path in tracked_though_ignored(self._root):
            self._tracked(path)

    def check_size(self) -> None:
        total = sum(self._sizes.values())
        if total > self._limit.size:
            raise SpecError(
                f"--ship would send {in_units(total)}, and the limit is {in_units(self._limit.size)}",
                f"the largest are: {_largest(self._sizes)}. Add to .gitignore what the hosts do not need, or raise the "
                f"limit: --ship-limit {_enough(total)}",
            )

    def _directory(self, directory: bytes, outside: Rules) -> list[tuple[bytes, Rules]]:
        """Add the entries of a directory; return its subdirectories to walk."""
        absolute = os.path.join(self._root, directory).rstrip(b"/") or b"/"
        rules = entered(outside, absolute, self._root)
        below = []
        empty = True
        try:
            entries = list(os.scandir(absolute))
        except OSError as error:
            raise _unreadable(directory, error) from None
        for entry in entries:
            is_directory = entry.is_dir(follow_symlinks=False)
            rule = decide(rules, entry.path, is_directory)
            if entry.name == b".git" or (rule is not None and rule.ignores):
                continue
            path = os.path.join(directory, entry.name)
            if is_directory and _is_output(path, self._output):
                continue
            empty = False
            if is_directory:
                below.append((path, rules))
            else:
                self._take(path, entry.stat(follow_symlinks=False))
        if empty and directory:
            # Scripts may write into directories that git does not know, since all their files are ignored.
            self.directories.append(Directory(directory))
        return below

    def _take(self, path: bytes, found: os.stat_result) -> None:
        if stat.S_ISREG(found.st_mode):
            self._sizes[path] = found.st_size
            if len(self._sizes) > self._limit.files:
                raise self._too_many()
        elif stat.S_ISLNK(found.st_mode):
            self._link(path)
        else:
            self.notes.append(f"{os.fsdecode(path)} is not sent: it is neither a file, a directory nor a link")

    def _too_many(self) -> SpecError:
        most = _largest(dict.fromkeys(self._sizes, 1), files=True)
        return SpecError(
            f"--ship would send more than {self._limit.files} files",
            f"most are in: {most}. Add to .gitignore what the hosts do not need, or raise the limit: "
            f"--ship-limit {_enough(self._limit.size)},{10 * self._limit.files}",
        )

    def _link(self, path: bytes) -> None:
        absolute = os.path.join(self._root, path)
        target = os.readlink(absolute)
        pointed_at = os.path.normpath(os.path.join(os.path.dirname(absolute), target))
        if os.path.isabs(target):
            # The path to the root may contain links, which are resolved in the target but not in the root.
            pointed_at = os.path.join(os.path.realpath(os.path.dirname(pointed_at)), os.path.basename(pointed_at))
        inside = (pointed_at + b"/").startswith(self._root.rstrip(b"/") + b"/")
        if inside and os.path.isabs(target):
            target = os.path.relpath(pointed_at, os.path.dirname(absolute))
        elif not inside:
            target = pointed_at
            self.notes.append(
                f"{os.fsdecode(path)} points out of the directory: the hosts must have their own {os.fsdecode(target)}"
            )
        self.links.append(Link(path, target))

    def _tracked(self, path: bytes) -> None:
        if _is_output(path, self._output):
            return
        try:
            found = os.stat(os.path.join(self._root, path), follow_symlinks=False)
        except OSError:
            return  # Deleted here, but not yet in the repository.
        if not stat.S_ISDIR(found.st_mode):
            self._take(path, found)


# --- words ----------------------------------------------------------------------------------------------------------


def in_units(size: int) -> str:
    """Format a number of bytes for people.

    Example:
        >>> in_units(2_340_000_000)
        '2.3 GB'
    """
    for unit in ("TB", "GB", "MB", "KB"):
        factor = SIZE_UNITS[unit[0]]
        if size >= factor:
            return f"{size / factor:.1f}".removesuffix(".0") + f" {unit}"
    return f"{size} bytes"


def _enough(size: int) -> str:
    return f"{-(-size // 10**9)}G"


def _largest(sizes: dict[bytes, int], *, files: bool = False) -> str:
    """Return the few files and directories that contain most of the size, in words."""
    totals: dict[bytes, dict[bytes, int]] = {}
    for path, size in sizes.items():
        while path:
            above = os.path.dirname(path)
            inside = totals.setdefault(above, {})
            inside[path] = inside.get(path, 0) + size
            path = above
    largest = sorted(totals[b""].items(), key=lambda item: item[1], reverse=True)[:_MOST_NAMED]
    words = []
    for path, size in largest:
        path = _where_most_is(path, size, totals)
        name = os.fsdecode(path) + ("/" if path in totals else "")
        words.append(f"{name} ({size} files)" if files else f"{name} ({in_units(size)})")
    return ", ".join(words)


def _where_most_is(path: bytes, size: int, totals: dict[bytes, dict[bytes, int]]) -> bytes:
    """Return the deepest directory below a path that has nearly all of its size."""
    while path in totals:
        below, its_size = max(totals[path].items(), key=lambda item: item[1])
        if its_size < 0.9 * size:
            break
        path = below
    return path

"""The jobs of this user that have a daemon: each has a directory, in which it is found by name.

    ~/.cache/farandole/jobs/NAME/
        lock            locked by the daemon while it lives, so that the kernel releases it when it ends. Its time is
                        the machine's monotonic clock when the daemon was last alive, not the time of day
        socket          the socket for clients
        job.json        the description of the job; no secrets
        launch-request  the request, and launcher.left and state.left: its progress, for the successor of a daemon
                        that was killed; with the job's secret
        output.log      output while no client showed it; output.log.1: output before that
        ended.json      the end of the job, if there was no client to report it to

The directory is removed when a client was told of the end, or has asked for it. Every command that lists jobs removes
the directories of daemons that were killed and can have no successor, and ends that no command has asked for within
`KEPT_SECONDS`. Home directories may be shared: this machine does not judge whether a job of another host is running.

The directories are not in `XDG_RUNTIME_DIR`, though it is meant for sockets: it is removed when its user logs out, and
a job that keeps training behind a closed laptop must be found again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import re
import shutil
import socket
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from farandole.base.wire import clock
from farandole.base.wire.encoding import decode_json, encode_json
from farandole.control.launcher.daemon.client_protocol import JobEnded
from farandole.control.launcher.daemon.daemon_connection import check_peer
from farandole.control.launcher.supervise.failover_files import FailoverFiles
from farandole.errors import SpecError

LIFE_SECONDS = 10.0
"""Seconds between two signs of life of a daemon."""
KEPT_SECONDS = 30 * 24 * 3600.0
# A lock without a record belongs to a job that is being started, or to a process that checks whether the job is dead.
_UNSURE_SECONDS = 1.0
RESERVED = ("add", "drain", "remove")
"""Words that cannot be names, because they may precede a name: `farandole hosts add`."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_FIRST = "amber bold brave bright calm clever eager fair fleet gentle glad golden happy kind lively lucky mellow merry"
_SECOND = "badger crane dancer falcon finch fox hare heron ibis lark lynx marten otter owl panda robin seal swan wren"


_Content = TypeVar("_Content", bound=msgspec.Struct)


class JobRecord(msgspec.Struct, frozen=True):
    """The facts about a job that all commands of this user may read."""

    name: str
    pid: int
    """Process id of its daemon."""
    host: str
    """The host that its daemon runs on."""
    started: float
    """The time of its start, in seconds since 1970."""
    command: tuple[str, ...]
    hosts: tuple[str, ...] = ()
    """The hosts that its workers first ran on; empty: only this machine."""
    clock: str = ""
    """Identity of the machine's clock since its start; see `clock.identity`."""
    outlived: float = 0.0
    """Seconds for which its workers continue and wait for a new daemon when the daemon is killed."""


class JobDirectory:
    """The directory of one job. The constructor neither creates nor reads any file.

    Attributes:
        path: the directory.
        name: name of the job.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.name

    @property
    def log(self) -> Path:
        """The file with the output that no client showed."""
        return self.path / "output.log"

    def failover_files(self) -> FailoverFiles:
        """Return the files that the daemon writes for a successor."""
        return FailoverFiles(self.path)

    def write_launch_request(self, request: bytes) -> None:
        """Store the launch request.

        Raises:
            SpecError: the file cannot be written.
        """
        _write_first(self.path / "launch-request", request)

    def launch_request(self) -> bytes:
        """Return the launch request.

        Raises:
            OSError: there is none.
        """
        return (self.path / "launch-request").read_bytes()

    def forget_launch_request(self) -> None:
        """Remove the launch request, which contains the user's environment."""
        with contextlib.suppress(OSError):
            (self.path / "launch-request").unlink()

    def show_life(self) -> None:
        """Record that the daemon is alive; to be called every `LIFE_SECONDS`."""
        # The time of day jumps, and a file server has another one.
        now = time.monotonic_ns()
        with contextlib.suppress(OSError):
            os.utime(self.path / "lock", ns=(now, now))

    def can_be_continued(self) -> bool:
        """Return whether another daemon can continue from this one's files, if the workers still wait for it."""
        record = self.record()
        if record is None or self.ended() is not None or not self.failover_files().is_whole():
            return False
        return record.clock == clock.identity()  # Otherwise the machine has been restarted since.

    def can_be_taken_over(self) -> bool:
        """Return whether another daemon may find running workers, whenever this job's daemon may have died."""
        record = self.record()
        if record is None or not self.can_be_continued():
            return False
        with contextlib.suppress(OSError):
            unseen = (time.monotonic_ns() - (self.path / "lock").stat().st_mtime_ns) / 1e9
            return 0.0 <= unseen < record.outlived + 2 * LIFE_SECONDS
        return False

    def record(self) -> JobRecord | None:
        """Return the record of the job; None if there is none."""
        return _read(self.path / "job.json", JobRecord)

    def write_record(self, record: JobRecord) -> None:
        """Write the record of the job atomically.

        Raises:
            SpecError: the file cannot be written.
        """
        self.show_life()  # First, since a new lock file has the time of day.
        _write_first(self.path / "job.json", encode_json(record))

    def ended(self) -> JobEnded | None:
        """Return the end of the job; None while it runs, or after its end was shown."""
        return _read(self.path / "ended.json", JobEnded)

    def write_ended(self, ended: JobEnded) -> None:
        """Store the end of the job for the next client that asks.

        Raises:
            OSError: the file cannot be written.
        """
        _write(self.path / "ended.json", encode_json(ended))

    def listen(self) -> socket.socket:
        """Return a socket that accepts clients.

        Raises:
            OSError: it cannot be created.
        """
        (self.path / "socket").unlink(missing_ok=True)  # The socket of a daemon that was killed.
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with self._short_path() as path:
            sock.bind(path)
        sock.listen(16)
        return sock

    def connect(self, seconds: float = 5.0) -> socket.socket:
        """Return a socket that is connected to the daemon.

        Raises:
            OSError: the daemon cannot be reached, or belongs to another user.
        """
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(seconds)
            with self._short_path() as path:
                sock.connect(path)
            check_peer(sock)
        except BaseException:
            sock.close()
            raise
        return sock

    @contextlib.contextmanager
    def _short_path(self) -> Iterator[str]:
        """Yield a path to the socket that fits into the 107 bytes of its address, whatever the home directory."""
        directory = os.open(self.path, os.O_PATH | os.O_DIRECTORY)
        try:
            yield f"/proc/self/fd/{directory}/socket"
        finally:
            os.close(directory)

    def claim(self) -> int | None:
        """Lock the directory; return the descriptor that holds the lock, or None if another process holds it.

        The directory is created if it does not exist. Every process with a copy of the descriptor holds the lock.

        Raises:
            SpecError: the directory cannot be created.
        """
        while True:
            lock = self._open_lock()
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                return None
            if self._is_lock(lock):
                return lock
            os.close(lock)

    def _open_lock(self) -> int:
        while True:
            try:
                self.path.mkdir(mode=0o700, exist_ok=True)
            except OSError as error:
                raise cannot_write(self.path, error) from None
            try:
                return os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                continue  # The process that held the lock has just removed the directory.
            except OSError as error:
                with contextlib.suppress(OSError):
                    self.path.rmdir()  # A directory without a lock belongs to no job.
                raise cannot_write(self.path / "lock", error) from None

    def _is_lock(self, lock: int) -> bool:
        """Return whether the locked file is the one in the directory, which may have been removed and created again."""
        try:
            return os.path.samestat(os.fstat(lock), os.stat(self.path / "lock"))
        except FileNotFoundError:
            return False

    def clear(self) -> None:
        """Remove the files of an earlier job, as the holder of the lock."""
        for path in self.path.iterdir():
            if path.name != "lock":
                path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the directory, as the holder of the lock."""
        shutil.rmtree(self.path, ignore_errors=True)


class Jobs:
    """All jobs of this user.

    Args:
        root: the parent of the jobs' directories.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def directory(self, name: str) -> JobDirectory:
        """Return the directory of a job of this name, whether or not it exists.

        Raises:
            SpecError: the name is not valid.
        """
        if not _NAME.fullmatch(name) or name in RESERVED:
            raise SpecError(
                f"{name!r} is not a valid name of a job", "up to 63 letters, digits, dots and dashes: --job resnet-2"
            )
        return JobDirectory(self._root / name)

    def start(self, name: str | None) -> tuple[JobDirectory, int] | None:
        """Claim a name for a new job, a free one if none is given; return its directory and the lock.

        Return None if a job of that name is running.

        Raises:
            SpecError: the name is not valid, or a job of another host has it.
        """
        self.sweep()
        if name is not None:
            return self._start(name)
        while (taken := self._start(self._free_name())) is None:
            continue
        return taken

    def _start(self, name: str) -> tuple[JobDirectory, int] | None:
        directory = self.directory(name)
        deadline = time.monotonic() + _UNSURE_SECONDS
        while (lock := directory.claim()) is None:
            if directory.record() is not None or time.monotonic() > deadline:
                return None
            time.sleep(0.01)
        record = directory.record()
        if record is not None and record.host != socket.gethostname():
            os.close(lock)
            raise SpecError(f"{name} is the name of a job on host {record.host}", "choose another name: --job NAME")
        if directory.can_be_taken_over():
            os.close(lock)
            return None
        directory.clear()
        return directory, lock

    def _free_name(self) -> str:
        taken = {path.name for path in self._root.iterdir()}
        while True:
            words = random.choice(_FIRST.split()), random.choice(_SECOND.split()), str(random.randint(10, 99))
            if (name := "-".join(words)) not in taken:
                return name

    def sweep(self) -> None:
        """Remove files of dead daemons, and ends that no client has asked for within `KEPT_SECONDS`."""
        for directory in self._all():
            record = directory.record()
            if record is not None and record.host != socket.gethostname():
                continue
            try:
                lock = directory.claim()
            except SpecError:  # A full disk is reported when something is started there.
                continue
            if lock is None:
                continue
            ended = directory.ended() is not None
            too_old = ended and _age(directory.path / "ended.json") > KEPT_SECONDS
            if too_old or not (ended or directory.can_be_taken_over()):
                directory.remove()
            os.close(lock)

    def known(self) -> list[tuple[JobDirectory, JobRecord]]:
        """Return the jobs that are running, or whose end no client was told of, oldest first."""
        self.sweep()
        found = [(each, record) for each in self._all() if (record := each.record()) is not None]
        return sorted(found, key=lambda job: job[1].started)

    def running(self) -> list[tuple[JobDirectory, JobRecord]]:
        """Return the running jobs, oldest first."""
        return [(each, record) for each, record in self.known() if each.ended() is None]

    def find(self, name: str | None, *, ended_too: bool = False) -> tuple[JobDirectory, JobRecord]:
        """Return the job of that name or, without a name, the only job.

        Raises:
            SpecError: there is no such job, or more than one, or it runs on another host.
        """
        jobs = self.known() if ended_too else self.running()
        names = ", ".join(directory.name for directory, _ in jobs)
        listed = "there are " if ended_too else "these run: "
        found = [job for job in jobs if name in (None, job[0].name)]
        if not found and name is not None:
            raise SpecError(f"there is no job {name}", f"{listed}{names}" if names else "no job is running")
        if not found:
            raise SpecError("no job is running", "start one: farandole run --min-np 1 -np 2 python train.py")
        if len(found) > 1:
            raise SpecError(f"{len(found)} jobs run: {names}", "give the name of one")
        directory, record = found[0]
        if record.host != socket.gethostname():
            raise SpecError(f"job {directory.name} runs on host {record.host}", f"log in there: ssh {record.host}")
        return directory, record

    def _all(self) -> list[JobDirectory]:
        return [JobDirectory(path) for path in sorted(self._root.iterdir()) if path.is_dir()]


def jobs_of_this_user(environment: Mapping[str, str]) -> Jobs:
    """Return this user's jobs. Their parent directory is created if it does not exist.

    Raises:
        SpecError: there is no directory for it.
    """
    trouble = ""
    for root in _places(environment):
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_private(root)
        except OSError as error:
            trouble = trouble or f"{root}: {error.strerror or error}"
        else:
            return Jobs(root)
    raise SpecError(
        f"there is no directory in which jobs can be found again: {trouble}",
        "set XDG_CACHE_HOME to a directory of your own",
    )


def _places(environment: Mapping[str, str]) -> Iterator[Path]:
    cache = environment.get("XDG_CACHE_HOME", "")
    yield Path(cache if os.path.isabs(cache) else os.path.expanduser("~/.cache")) / "farandole" / "jobs"
    if os.path.isabs(runtime := environment.get("XDG_RUNTIME_DIR", "")):
        yield Path(runtime) / "farandole" / "jobs"
    yield Path(f"/tmp/farandole-{os.geteuid()}")  # In a container, a user often has no home directory.


def _check_private(directory: Path) -> None:
    """Check that only this user can read and write a directory.

    Raises:
        OSError: other users can.
    """
    status = os.lstat(directory)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError(None, "it is not a directory of this user")
    if status.st_mode & 0o077:
        os.chmod(directory, 0o700)


def _age(path: Path) -> float:
    return time.time() - path.stat().st_mtime


def _read(path: Path, kind: type[_Content]) -> _Content | None:
    try:
        return decode_json(path.read_bytes(), kind)
    except (OSError, msgspec.DecodeError):
        return None


def cannot_write(path: Path, error: OSError) -> SpecError:
    """Return the error about a file that a job needs and that cannot be written."""
    return SpecError(
        f"{path} cannot be written: {error.strerror or error}",
        "free disk space there, or set XDG_CACHE_HOME to a directory of your own with enough space",
    )


def _write_first(path: Path, content: bytes) -> None:
    """Write a file that must exist before a job can start."""
    try:
        _write(path, content)
    except OSError as error:
        raise cannot_write(path, error) from None


def _write(path: Path, content: bytes) -> None:
    draft = path.with_name(f".{path.name}")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    draft.replace(path)

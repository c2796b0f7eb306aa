"""The files of an attempt, by which daemon and runner know of each other, whoever of them is killed.

    attempts/NAME.N/
        request     what is to be run: written once, before the runner is started (it has the user's environment)
        hosts       of an elastic job: where its workers are to be, which its launcher reads again and again
        batch       of an elastic job whose batch adapts itself: what the policy has chosen, if it has
        order       how the attempt is to be stopped: `cancel`, `suspend`, `kill`
        own/        the runner's: it belongs to the job's user
            lock        locked by the runner for as long as it lives; so the kernel says whether it does
            begun       there once the command may have been started: made only once, before that; says on which boot
                        of the machine
            report      how the elastic job is
            state.left, launcher.left
                        of an elastic job: how far it has come, for the successor of a runner that was killed
            output.log  what the workers print
            ended       how it ended; nothing of the attempt runs any more

`begun` and `ended` are made under the lock. So the command is started at most once, however many runners are started;
and an attempt that has not begun can be closed by whoever gets the lock.

The daemon may be root, and reads what belongs to users: it follows no link there, and reads files of the owner only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from farandole.base.wire import clock
from farandole.base.wire.encoding import decode_json, encode_json
from farandole.control.jobs.spec import JobSpec
from farandole.control.launcher.supervise.failover_files import FailoverFiles
from farandole.control.queue.model import NO_OPTIONS, AttemptFact, AttemptReport, Owner, RunOptions, Seen
from farandole.control.scheduler.handover import Slots

_FILE_BYTES = 1024 * 1024


class Request(msgspec.Struct, frozen=True):
    """What a runner runs."""

    job: JobSpec
    slots: Slots
    """Of a job of fixed size: those of its workers; of an elastic one: those to begin with."""
    environment: Mapping[str, str]
    """Of the process that has submitted the job."""
    directory: str
    """Where the job runs."""
    options: RunOptions = NO_OPTIONS


class Ended(msgspec.Struct, frozen=True):
    """How an attempt ended."""

    exit_code: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)] | None
    """None: it never began, or nobody knows."""
    was_told: bool = False


_Content = TypeVar("_Content", bound=msgspec.Struct)


def is_attempt(local: str, name: str) -> bool:
    """Return whether a local name is that of an attempt of a job of the queue.

    Example:
        >>> is_attempt("resnet.2", "resnet"), is_attempt("resnet-2", "resnet")
        (True, False)
    """
    job, dot, attempt = local.rpartition(".")
    return bool(dot) and job == name and attempt.isdecimal()


class Attempt:
    """One attempt's files. Nothing is made or read before a method says so.

    Args:
        root: the directory of all attempts.
        job: its name.
        number: of the attempt.
    """

    def __init__(self, root: Path, job: str, number: int) -> None:
        self.path = root / f"{job}.{number}"
        self.own = self.path / "own"

    @classmethod
    def at(cls, path: Path) -> Attempt:
        """Return the attempt whose directory this is."""
        job, _, number = path.name.rpartition(".")
        return cls(path.parent, job, int(number))

    @property
    def local_name(self) -> str:
        """The name under which commands of its user find an elastic job while this attempt runs."""
        return self.path.name

    @property
    def log(self) -> Path:
        return self.own / "output.log"

    @property
    def hosts(self) -> Path:
        return self.path / "hosts"

    # --- the daemon's side -----------------------------------------------------------------------------------------

    def prepare(self, request: Request, owner: Owner) -> None:
        """Make all that a runner needs; what is there already stays.

        Raises:
            OSError: the disk does not take it.
        """
        if (self.path / "request").exists():
            return
        self._make()
        self.own.mkdir(mode=0o700, exist_ok=True)
        self.set_hosts(request.slots)
        draft = self.path / ".request"
        _write(draft, encode_json(request), 0o600)
        if os.geteuid() == 0:
            os.chown(self.own, owner.uid, owner.gid)
            os.chown(draft, owner.uid, owner.gid)
        draft.replace(self.path / "request")

    def _make(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        self.path.chmod(0o755)  # The runner is the user's, whatever the daemon's umask is.

    def set_hosts(self, slots: Slots) -> bool:
        """Say where the workers of an elastic job are to be; return whether that is new."""
        text = "".join(f"{host} slots={number}\n" for host, number in slots.items())
        with contextlib.suppress(OSError):
            if self.hosts.read_text() == text:
                return False
        _replace(self.hosts, text.encode(), 0o644)
        return True

    def set_batch(self, samples: int) -> None:
        """Say which batch the policy has chosen; 0: the job chooses."""
        if samples != self.batch():
            _replace(self.path / "batch", str(samples).encode(), 0o644)

    def order(self, how: str) -> None:
        """Tell the runner to stop; an order is not taken back."""
        if self.ordered() not in (how, "kill"):
            self._make()
            _replace(self.path / "order", how.encode(), 0o644)

    def close_if_not_begun(self) -> None:
        """See that the command is never started, if it was not."""
        if not self.own.exists():
            return
        lock = self._lock()
        if lock is None:
            return
        try:
            if not self.has_begun() and self.ended() is None:
                self.write_ended(Ended(None))
        finally:
            os.close(lock)

    def fact(self, owner: Owner | None = None) -> AttemptFact:
        """Return what can be seen of the attempt."""
        if not self.own.exists():
            # An attempt that was never prepared, and is to stop, is over.
            return AttemptFact(Seen.ENDED if self.ordered() else Seen.NOTHING)
        alive = self._is_locked()
        ended = self.ended(owner)  # After the look at the lock: a runner that has just ended has written it.
        if ended is not None:
            return AttemptFact(Seen.ENDED, ended.exit_code, ended.was_told)
        if not self.has_begun():
            return AttemptFact(Seen.NOTHING)
        if not alive and not self._began_on_this_boot(owner):
            return AttemptFact(Seen.MACHINE_LOST)
        return AttemptFact(Seen.RUNS if alive else Seen.ORPHANED, report=self.report(owner))

    def report(self, owner: Owner | None = None) -> AttemptReport | None:
        return _read(self.own / "report", AttemptReport, owner)

    def ended(self, owner: Owner | None = None) -> Ended | None:
        return _read(self.own / "ended", Ended, owner)

    def read_log(self, offset: int, most: int, owner: Owner | None = None) -> bytes:
        """Return a piece of what the workers have printed."""
        try:
            descriptor = _open_plain(self.log, owner)
        except OSError:
            return b""
        with open(descriptor, "rb") as file:
            file.seek(offset)
            return file.read(most)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    # --- both sides --------------------------------------------------------------------------------------------------

    def request(self) -> Request:
        """Return what is to be run.

        Raises:
            OSError: it is not there.
        """
        return decode_json((self.path / "request").read_bytes(), Request)

    def batch(self) -> int:
        """Return the batch that the policy has chosen; 0: the job chooses."""
        try:
            return int((self.path / "batch").read_text())
        except OSError:
            return 0

    def ordered(self) -> str:
        """Return how the attempt is to be stopped; "": it is not."""
        try:
            return (self.path / "order").read_text()
        except OSError:
            return ""

    def has_begun(self) -> bool:
        return os.path.lexists(self.own / "begun")

    def _began_on_this_boot(self, owner: Owner | None = None) -> bool:
        """Return whether the machine has not been started again since the attempt began."""
        try:
            with open(_open_plain(self.own / "begun", owner), "rb") as file:
                return file.read(_FILE_BYTES) == clock.identity().encode()
        except OSError:
            return False

    def _is_locked(self) -> bool:
        lock = self._lock()
        if lock is None:
            return True
        os.close(lock)
        return False

    def _lock(self) -> int | None:
        """Lock the attempt, and return the descriptor that holds the lock; None: a runner holds it."""
        lock = _open_or_make(self.own / "lock")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        return lock

    # --- the runner's side ---------------------------------------------------------------------------------------

    def claim(self) -> int | None:
        """Lock the attempt for as long as this process lives; None: another runner has it."""
        return self._lock()

    def begin(self) -> None:
        """Note that the command is about to be started. Only once, under the lock."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(self.own / "begun", flags, 0o600), "w") as file:
            file.write(clock.identity())
        _sync(self.own)

    def failover_files(self) -> FailoverFiles:
        """Return what the launcher of an elastic job leaves to its successor."""
        return FailoverFiles(self.own)

    def can_go_on(self) -> bool:
        """Return whether a runner can go on with an attempt that has begun, if its workers still wait for one."""
        return self.ended() is None and self.failover_files().is_whole() and self._began_on_this_boot()

    def write_report(self, report: AttemptReport) -> None:
        _replace(self.own / "report", encode_json(report), 0o600, durable=False)

    def write_ended(self, ended: Ended) -> None:
        """Note how the attempt ended, under the lock."""
        _replace(self.own / "ended", encode_json(ended), 0o600)


def _open_or_make(path: Path) -> int:
    """Open a file in a directory of the job's user, and make it if need be, as theirs."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        try:
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            try:
                return os.open(path, flags)
            except FileNotFoundError:
                continue
        _hand_over(descriptor, path.parent)
        return descriptor


def _hand_over(descriptor: int, directory: Path) -> None:
    """Give a file that this process has just made to whom its directory belongs to."""
    # Never by its path: meanwhile, the owner of the directory may have put another file there.
    if os.geteuid() == 0:
        status = os.stat(directory)
        os.fchown(descriptor, status.st_uid, status.st_gid)


def _write(path: Path, content: bytes, mode: int, durable: bool = True) -> None:
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
        file.write(content)
        os.fchmod(file.fileno(), mode)  # Whatever the umask is.
        _hand_over(file.fileno(), path.parent)
        if durable:
            file.flush()
            os.fsync(file.fileno())


def _replace(path: Path, content: bytes, mode: int, durable: bool = True) -> None:
    """Write a file as a whole."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    _write(draft, content, mode, durable)
    draft.replace(path)
    if durable:
        _sync(path.parent)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _open_plain(path: Path, owner: Owner | None) -> int:
    """Open a file that its user may have put there: no link, nothing but a plain file, and the user's own.

    Raises:
        OSError: it is not there, or not like that.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    theirs = owner is None or status.st_uid in (owner.uid, os.geteuid())
    if not stat.S_ISREG(status.st_mode) or not theirs or status.st_nlink != 1:
        os.close(descriptor)
        raise PermissionError(None, "it is not a plain file of the job's user", os.fspath(path))
    return descriptor


def _read(path: Path, kind: type[_Content], owner: Owner | None) -> _Content | None:
    try:
        with open(_open_plain(path, owner), "rb") as file:
            return decode_json(file.read(_FILE_BYTES), kind)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # Whatever a user has written there, it ends no daemon.

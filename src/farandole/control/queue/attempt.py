"""The files of an attempt, through which daemon and runner know about each other even if one of them is killed.

    attempts/NAME.N/
        request     the job to run: written once, before the runner is started (it has the user's environment)
        hosts       of an elastic job: the hosts of its workers, which its launcher reads repeatedly
        batch       of an elastic job with an adaptive batch size: the batch that the policy has chosen, if any
        order       the way to stop the attempt: `cancel`, `suspend`, `kill`
        own/        written by the runner; owned by the job's user
            lock        locked by the runner while it lives, so that the kernel releases it when the runner ends
            begun       exists once the command may have been started: written once, before the start; names the boot
                        of the machine
            report      the state of the elastic job
            state.left, launcher.left
                        of an elastic job: its progress, for the successor of a runner that was killed
            output.log  the output of the workers
            .ended      room for the result, made before `begun`, because the job may fill the disk
            ended       the result; no process of the attempt runs any more

`begun` and `ended` are written under the lock. So the command is started at most once, however many runners start,
and an attempt that has not begun can be closed by any process that gets the lock.

The daemon may be root, and reads files of users: it follows no link there, and reads only files that the owner owns.
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
from farandole.control.queue.model import NO_OPTIONS, AttemptFact, AttemptReport, AttemptState, Owner, RunOptions
from farandole.control.scheduler.handover import Slots

_FILE_BYTES = 1024 * 1024
# More than any result has.
_RESULT_BYTES = 256


class AttemptRequest(msgspec.Struct, frozen=True):
    """A request to run one attempt of a job."""

    job: JobSpec
    slots: Slots
    """The slots of the workers of a job of fixed size, or the first slots of an elastic job."""
    environment: Mapping[str, str]
    """The environment of the process that submitted the job."""
    directory: str
    """The working directory of the job."""
    options: RunOptions = NO_OPTIONS
    slot_numbers: Mapping[str, str] = {}
    """The numbers of these slots on each host, in the form that the launcher reads."""


class AttemptResult(msgspec.Struct, frozen=True):
    """The result of an attempt."""

    exit_code: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)] | None
    """None if the command was never started, or its exit code is unknown."""
    was_told: bool = False


_Content = TypeVar("_Content", bound=msgspec.Struct)


def is_attempt(local: str, name: str) -> bool:
    """Return whether a name on this machine is that of an attempt of a job of the queue.

    Example:
        >>> is_attempt("resnet.2", "resnet"), is_attempt("resnet-2", "resnet")
        (True, False)
    """
    job, dot, attempt = local.rpartition(".")
    return bool(dot) and job == name and attempt.isdecimal()


class Attempt:
    """The files of one attempt. The constructor neither creates nor reads any.

    Args:
        root: the directory of all attempts.
        job: the name of the job.
        number: the number of the attempt.
    """

    def __init__(self, root: Path, job: str, number: int) -> None:
        self.path = root / f"{job}.{number}"
        self.own = self.path / "own"

    @classmethod
    def at(cls, path: Path) -> Attempt:
        """Return the attempt whose files are in a directory."""
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

    # --- used by the daemon --------------------------------------------------------------------------------------

    def prepare(self, request: AttemptRequest, owner: Owner) -> None:
        """Create all files that a runner needs; existing files stay as they are.

        Raises:
            OSError: the files cannot be written.
        """
        if (self.path / "request").exists():
            return
        self._make()
        self.own.mkdir(mode=0o700, exist_ok=True)
        self.set_hosts(request.slots, request.slot_numbers)
        draft = self.path / ".request"
        _write(draft, encode_json(request), 0o600)
        if os.geteuid() == 0:
            os.chown(self.own, owner.uid, owner.gid)
            os.chown(draft, owner.uid, owner.gid)
        draft.replace(self.path / "request")

    def _make(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        self.path.chmod(0o755)  # The job's user must be able to enter it, whatever the daemon's umask is.

    def set_hosts(self, slots: Slots, numbers: Mapping[str, str]) -> bool:
        """Write the hosts of an elastic job's workers; return whether they have changed."""
        words = {host: f" slot-numbers={which}" for host, which in numbers.items()}
        text = "".join(f"{host} slots={number}{words.get(host, '')}\n" for host, number in slots.items())
        with contextlib.suppress(OSError):
            if self.hosts.read_text() == text:
                return False
        _replace(self.hosts, text.encode(), 0o644)
        return True

    def set_batch(self, samples: int) -> None:
        """Write the batch that the policy has chosen, in samples; 0 lets the job choose."""
        if samples != self.batch():
            _replace(self.path / "batch", str(samples).encode(), 0o644)

    def order(self, how: str) -> None:
        """Order the runner to stop, by `cancel`, `suspend` or `kill`; an order cannot be withdrawn."""
        if self.ordered() not in (how, "kill"):
            self._make()
            _replace(self.path / "order", how.encode(), 0o644)

    def close_if_not_begun(self) -> None:
        """End an attempt whose command was not started, so that it never will be."""
        if not self.own.exists():
            return
        lock = self.claim()
        if lock is None:
            return
        try:
            if not self.has_begun() and self.ended() is None:
                self.write_ended(AttemptResult(None))
        finally:
            os.close(lock)

    def fact(self, owner: Owner | None = None) -> AttemptFact:
        """Return the observed state of the attempt."""
        if not self.own.exists():
            # An attempt that was never prepared, but was ordered to stop, is over.
            return AttemptFact(AttemptState.ENDED if self.ordered() else AttemptState.NOTHING)
        alive = self._is_locked()
        ended = self.ended(owner)  # Read after the lock was tested: a runner that has just ended has written it.
        if ended is not None:
            return AttemptFact(AttemptState.ENDED, ended.exit_code, ended.was_told)
        if not self.has_begun():
            return AttemptFact(AttemptState.NOTHING)
        if not alive and not self._began_on_this_boot(owner):
            return AttemptFact(AttemptState.MACHINE_LOST)
        return AttemptFact(AttemptState.RUNS if alive else AttemptState.ORPHANED, report=self.report(owner))

    def report(self, owner: Owner | None = None) -> AttemptReport | None:
        return _read(self.own / "report", AttemptReport, owner)

    def ended(self, owner: Owner | None = None) -> AttemptResult | None:
        return _read(self.own / "ended", AttemptResult, owner)

    def read_log(self, offset: int, most: int, owner: Owner | None = None) -> bytes:
        """Return at most `most` bytes of the workers' output, from a byte offset."""
        try:
            descriptor = _open_plain(self.log, owner)
        except OSError:
            return b""
        with open(descriptor, "rb") as file:
            file.seek(offset)
            return file.read(most)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    # --- used by both --------------------------------------------------------------------------------------------

    def request(self) -> AttemptRequest:
        """Return the request to run this attempt.

        Raises:
            OSError: there is none.
        """
        return decode_json((self.path / "request").read_bytes(), AttemptRequest)

    def batch(self) -> int:
        """Return the batch that the policy has chosen, in samples; 0 if the job chooses."""
        try:
            return int((self.path / "batch").read_text())
        except OSError:
            return 0

    def ordered(self) -> str:
        """Return the order to stop (`cancel`, `suspend` or `kill`); "" if there is none."""
        try:
            return (self.path / "order").read_text()
        except OSError:
            return ""

    def has_begun(self) -> bool:
        return os.path.lexists(self.own / "begun")

    def _began_on_this_boot(self, owner: Owner | None = None) -> bool:
        """Return whether the machine has not been restarted since the attempt began."""
        try:
            with open(_open_plain(self.own / "begun", owner), "rb") as file:
                return file.read(_FILE_BYTES) == clock.identity().encode()
        except OSError:
            return False

    def _is_locked(self) -> bool:
        lock = self.claim()
        if lock is None:
            return True
        os.close(lock)
        return False

    def claim(self) -> int | None:
        """Lock the attempt; return the descriptor that holds the lock, or None if a runner holds it."""
        lock = _open_or_make(self.own / "lock")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        return lock

    # --- used by the runner --------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Record that the command is about to be started. Only once, under the lock.

        The job may fill the disk: room for its result is taken before.
        """
        _write(self.own / ".ended", bytes(_RESULT_BYTES), 0o600)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(self.own / "begun", flags, 0o600), "w") as file:
            file.write(clock.identity())
        _sync(self.own)

    def failover_files(self) -> FailoverFiles:
        """Return the files in which the launcher of an elastic job saves its state for its successor."""
        return FailoverFiles(self.own)

    def can_go_on(self) -> bool:
        """Return whether a new runner can continue an attempt that has begun, if its workers still wait."""
        return self.ended() is None and self.failover_files().is_whole() and self._began_on_this_boot()

    def write_report(self, report: AttemptReport) -> None:
        _replace(self.own / "report", encode_json(report), 0o600, durable=False)

    def write_ended(self, ended: AttemptResult) -> None:
        """Record the result of the attempt, under the lock."""
        _replace(self.own / "ended", encode_json(ended), 0o600)

    def end(self, result: AttemptResult) -> None:
        """Record the result of an attempt that has begun, under the lock. A full disk has room for it."""
        draft = self.own / ".ended"
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(encode_json(result).ljust(_RESULT_BYTES))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.own / "ended")
        _sync(self.own)


def _open_or_make(path: Path) -> int:
    """Open a file in a directory of the job's user; create it, owned by that user, if it does not exist."""
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
    """Change the owner of a file that this process has just created to the owner of its directory."""
    # Not by its path: the owner of the directory may have replaced the file meanwhile.
    if os.geteuid() == 0:
        status = os.stat(directory)
        os.fchown(descriptor, status.st_uid, status.st_gid)


def _write(path: Path, content: bytes, mode: int, durable: bool = True) -> None:
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
        file.write(content)
        os.fchmod(file.fileno(), mode)  # Independent of the umask.
        _hand_over(file.fileno(), path.parent)
        if durable:
            file.flush()
            os.fsync(file.fileno())


def _replace(path: Path, content: bytes, mode: int, durable: bool = True) -> None:
    """Write a file atomically."""
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
    """Open a file that its user may have replaced: only a plain file (no link) that the user owns.

    Raises:
        OSError: it does not exist, or is not such a file.
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
    except (OSError, msgspec.DecodeError):
        return None  # Nothing that a user writes there may end the daemon.

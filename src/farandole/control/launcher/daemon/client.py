"""The process that the user starts, sees and signals, while a daemon runs the job.

A client sends the descriptors of its standard output and error to the daemon, which writes to them. The client waits,
forwards the user's signals, and ends with the job's exit code. It imports very little: the daemon loads the launcher.

| to the client | to the job |
|---|---|
| Ctrl-C, SIGTERM | ends with its grace period, the second time at once; with `--detach`: nothing, the client leaves |
| Ctrl-Z | nothing; the client stops, and catches up when it continues |
| SIGHUP, SIGKILL, its output has no reader | nothing |
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from farandole.base.installed import own_environment
from farandole.base.wire.errors import ConnectionLost, WireError, WireTimeout
from farandole.control.launcher.daemon.client_protocol import (
    Hidden,
    Hide,
    JobEnded,
    Launch,
    RequestRefused,
    Stop,
    TakenOver,
    Unread,
)
from farandole.control.launcher.daemon.daemon_connection import DaemonConnection
from farandole.control.launcher.daemon.jobs import JobDirectory, JobRecord, Jobs, jobs_of_this_user
from farandole.control.launcher.daemon.launch_request import ERR, OUT, LaunchRequest, show_here
from farandole.control.launcher.daemon.recent_lines import RECALLED_LINES
from farandole.control.launcher.failure.record import signal_name
from farandole.errors import Picklable, SpecError

# Seconds; the daemon releases the terminal in less time.
_HIDE_SECONDS = 2.0
# Seconds within which a daemon that was killed has a successor.
_FOLLOW_SECONDS = 15.0
_RETRY_SECONDS = 0.02
_MOST_FOLLOWED = 10
# Seconds: a daemon whose socket has closed is about to end itself.
_EXIT_SECONDS = 5.0
_STOPPING = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


class ClientOptions(NamedTuple):
    """The behaviour of a client."""

    name: str | None = None
    """The name of the job; None: a new name, or the only job."""
    detach: bool = False
    """Whether Ctrl-C and SIGTERM make the client leave, without effect on the job."""


def run_in_daemon(request: LaunchRequest, options: ClientOptions) -> JobEnded:
    """Run a job in a daemon and show it; return how it ended, or the reason why this process no longer shows it.

    Raises:
        SpecError: the job cannot be started; nothing was.
    """
    _open_what_is_closed()
    jobs = jobs_of_this_user(os.environ)
    started = jobs.start(options.name)
    if started is None:
        assert options.name is not None
        return _attach_to_same(jobs, options, request)
    directory, lock = started
    with _SignalWakeup() as alarm, _Client(directory, request.spec.output.color, options.detach, alarm) as client:
        return client.run(lambda: client.start(pickle.dumps(request), lock))


def attach(options: ClientOptions, color: str) -> JobEnded:
    """Show a job that is running, or that has ended meanwhile; return how it ended.

    Raises:
        SpecError: there is no job of that name.
    """
    _open_what_is_closed()
    directory, record = jobs_of_this_user(os.environ).find(options.name, ended_too=True)
    return _attach(directory, record, color, options.detach)


def _attach_to_same(jobs: Jobs, options: ClientOptions, request: LaunchRequest) -> JobEnded:
    """Show the running job of this name, if it is the requested one.

    Raises:
        SpecError: it is another job.
    """
    directory, record = jobs.find(options.name)
    if record.command != request.spec.command:
        raise SpecError(
            f"a job named {record.name} is already running, with another command: {' '.join(record.command)}",
            f"choose another name, or end that job: farandole stop {record.name}",
        )
    print(f"farandole: job {record.name} is already running; showing it", file=sys.stderr)
    return _attach(directory, record, request.spec.output.color, options.detach, pickle.dumps(request))


def _attach(directory: JobDirectory, record: JobRecord, color: str, detach: bool, request: bytes = b"") -> JobEnded:
    if directory.ended() is not None:
        return show_end(directory)
    with _SignalWakeup() as alarm, _Client(directory, color, detach, alarm) as client:
        return client.run(lambda: client.connect(record, request))


def show_end(directory: JobDirectory) -> JobEnded:
    """Show the last lines of a job that ended while no client showed it, forget the job, and return how it ended."""
    ended = directory.ended() or JobEnded(1)
    with contextlib.suppress(OSError):
        lines = directory.log.read_text(errors="replace").splitlines(keepends=True)
        print(*lines[-RECALLED_LINES:], sep="", end="", flush=True)
    if (lock := directory.claim()) is not None:
        directory.remove()
        os.close(lock)
    return ended


class _SignalWakeup:
    """A descriptor that becomes readable at a signal. Without it, a signal just before a wait would be missed."""

    def __enter__(self) -> int:
        self._reading, self._writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        return self._reading

    def __exit__(self, *error: object) -> None:
        signal.set_wakeup_fd(self._before)
        os.close(self._reading)
        os.close(self._writing)


class _Leave(Picklable, BaseException):
    """A signal that ends the client but not the job."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


class _Client:
    """The state of this process while it shows one job.

    Args:
        directory: the job's directory.
        color: whether prefixes have colours; see `OutputOptions`.
        detach: as in `ClientOptions`.
        alarm: as in `DaemonConnection`.
    """

    def __init__(self, directory: JobDirectory, color: str, detach: bool, alarm: int) -> None:
        self._directory = directory
        self._color = color
        self._detach = detach
        self._alarm = alarm
        self._followed = 0
        """Number of daemons that were killed and replaced by a successor."""
        self._link: DaemonConnection | None = None
        self._daemon: subprocess.Popen[bytes] | None = None
        self._hide_until: float | None = None
        """Set while a Ctrl-Z waits for the daemon to release the terminal."""
        self._hidden = False
        """Whether the job is hidden here because of a Ctrl-Z."""
        self._reached = False
        """Whether there is a daemon that receives messages."""
        self._early_signals: list[int] = []
        """Signals that arrived while there was no daemon."""
        self._last_stop: int | None = None
        """The last signal that was sent to this daemon."""

    def __enter__(self) -> _Client:
        return self

    def __exit__(self, *error: object) -> None:
        if self._link is not None:
            self._link.close()
        if self._daemon is not None and self._daemon.poll() is None:
            self._daemon.returncode = 0  # This process does not wait for it.

    # --- starting ------------------------------------------------------------------------------------------------

    def start(self, request: bytes, lock: int) -> None:
        """Start the daemon with the job, or a successor of a killed daemon.

        Args:
            request: the request, as `Launch` describes it.
            lock: the descriptor that locks the job's directory.

        Raises:
            SpecError: the daemon cannot be started.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._daemon = subprocess.Popen(
                    [sys.executable, "-m", "farandole.control.launcher.daemon", self._directory.name],
                    stdin=theirs.fileno(),
                    start_new_session=True,  # Signals of this terminal must not reach it.
                    cwd="/",  # python -m imports modules from here first: never from a directory of the user.
                    env=own_environment(),
                )
            except OSError as error:
                raise SpecError(f"{sys.executable} cannot be started: {error.strerror}") from None
        self._link = DaemonConnection(ours, self._alarm)
        self._link.send(Launch(request, os.fspath(self._directory.path)), [lock])
        os.close(lock)
        self._show()

    def connect(self, record: JobRecord, request: bytes = b"") -> None:
        """Connect to the running daemon or its successor; if neither exists, run the request again.

        Raises:
            SpecError: none of these is possible.
        """
        try:
            self._link = DaemonConnection(self._directory.connect(), self._alarm)
        except OSError as error:
            if self._follow(request):
                return
            raise SpecError(
                f"the launcher of job {record.name}, process {record.pid}, cannot be reached: {error}",
                f"check whether it is alive: ps {record.pid}",
            ) from None
        self._show()

    def _follow(self, request: bytes = b"") -> bool:
        """Connect to the successor of a killed daemon, started here if need be; return False if there is none."""
        deadline = time.monotonic() + _FOLLOW_SECONDS
        self._followed += 1
        while self._followed <= _MOST_FOLLOWED and time.monotonic() < deadline and self._directory.can_be_taken_over():
            if (lock := self._directory.claim()) is not None:
                self.start(request, lock)
                return True
            with contextlib.suppress(OSError):
                self._link = DaemonConnection(self._directory.connect(), self._alarm)
                self._show()
                return True
            time.sleep(_RETRY_SECONDS)
        return False

    def _show(self, *, again: bool = False) -> None:
        assert self._link is not None
        self._link.send(show_here(self._color, again=again), [OUT, ERR])

    # --- running ------------------------------------------------------------------------------------------------

    def run(self, begin: Callable[[], None]) -> JobEnded:
        """Begin, and wait for the end.

        Raises:
            SpecError: the job cannot be started; nothing was.
        """
        try:
            with self._signals():
                begin()
                self._pass_on_early_signals()
                while (ended := self._wait_while_connected()) is None:
                    self._reached = False
                    if not self._follow():
                        return self._lost()
                    self._pass_on_early_signals()
                return ended
        except _Leave as left:
            return self._left(left.signum)
        except ConnectionLost:
            return self._lost()

    def _pass_on_early_signals(self) -> None:
        """Forward the signals that arrived while there was no daemon."""
        self._reached = True
        early, self._early_signals = self._early_signals, []
        for signum in early:
            self._stop_signal(signum, None)

    def _wait_while_connected(self) -> JobEnded | None:
        """Return the result of `_wait`; None if the daemon is gone."""
        assert self._link is not None
        try:
            return self._wait()
        except ConnectionLost:
            if self._link.unread and self._last_stop is not None:
                self._early_signals.append(self._last_stop)
            self._last_stop = None
            return None

    def _wait(self) -> JobEnded:
        assert self._link is not None
        while True:
            try:
                message = self._link.receive(self._receive_deadline())
            except WireTimeout:
                self._resume()
                continue
            if isinstance(message, JobEnded):
                return self._ended(message)
            if isinstance(message, RequestRefused):
                self._reap()
                raise SpecError(message.message, message.hint)
            if isinstance(message, TakenOver):
                return JobEnded(1, f"farandole: job {self._directory.name} is now shown elsewhere")
            if isinstance(message, Unread):
                return JobEnded(
                    128 + signal.SIGPIPE,
                    f"farandole: the output has no reader, or no space, any more; {self._how_to_return()}",
                )
            if isinstance(message, Hidden) and self._hide_until is not None:
                self._suspend()

    def _receive_deadline(self) -> float | None:
        """Return the deadline for the next message, on the monotonic clock."""
        # Messages that arrived while this process was stopped may end its display of the job.
        return time.monotonic() if self._hidden else self._hide_until

    def _resume(self) -> None:
        """Carry out a pending Ctrl-Z if no message has arrived."""
        if self._hidden:
            self._show(again=True)
            self._hidden = False
        else:
            self._suspend()

    def _ended(self, message: JobEnded) -> JobEnded:
        self._reap()
        # This process may have asked to be shown the job again when it was already too late.
        return message if message.shown else show_end(self._directory)

    def _suspend(self) -> None:
        """Stop this process for Ctrl-Z."""
        self._hide_until = None
        self._hidden = True
        os.kill(os.getpid(), signal.SIGSTOP)

    def _left(self, signum: int) -> JobEnded:
        """Wait until the daemon has cleaned up the terminal; return the end that this client reports."""
        assert self._link is not None
        with contextlib.suppress(WireError):
            self._link.send(Hide())
            deadline = time.monotonic() + _HIDE_SECONDS
            while not isinstance(self._link.receive(deadline), Hidden):
                continue
        name = self._directory.name
        return JobEnded(128 + signum, f"farandole: {self._how_to_return()}; farandole stop {name} ends it")

    def _how_to_return(self) -> str:
        name = self._directory.name
        return f"job {name} continues; farandole run --attach {name} shows it again"

    def _lost(self) -> JobEnded:
        """Return the end of a job whose daemon was lost without a message; the directory may contain the reason."""
        code = self._reap()
        if self._directory.ended() is not None:
            return show_end(self._directory)
        if code is None:
            how = "has ended"
        else:
            how = f"exited with code {code}" if code >= 0 else f"was killed by {signal_name(-code)}"
        return JobEnded(1, f"error: the launcher of job {self._directory.name} {how}; {self._what_is_left()}")

    def _what_is_left(self) -> str:
        name, record = self._directory.name, self._directory.record()
        if self._directory.can_be_taken_over():
            return f"the workers wait for another one\nhint: take the job over: farandole run --attach {name}"
        within = "" if record is None or not record.outlived else f" within {record.outlived:g} s"
        return f"the agents end the workers{within}\nhint: start the job again; its checkpoints are kept"

    def _reap(self) -> int | None:
        """Reap the daemon if it is our child, and return its exit code."""
        if self._daemon is None:
            return None
        try:
            return self._daemon.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            return None

    # --- signals ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Handle this process's signals, except those that it was started to ignore."""
        handlers = {
            signal.SIGINT: self._stop_signal,
            signal.SIGTERM: self._stop_signal,
            signal.SIGTSTP: self._pause_signal,
        }
        before = {
            signum: signal.signal(signum, handler)
            for signum, handler in handlers.items()
            if signal.getsignal(signum) is not signal.SIG_IGN
        }
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)

    def _stop_signal(self, signum: int, where: object) -> None:
        if not self._reached:
            self._early_signals.append(signum)
            return
        if self._detach:
            raise _Leave(signum)
        assert self._link is not None
        try:
            self._link.send(Stop(128 + signum, _STOPPING[signal.Signals(signum)]))
            self._last_stop = signum
        except WireError:
            self._early_signals.append(signum)  # `_wait` notices it too, and connects to another daemon.

    def _pause_signal(self, signum: int, where: object) -> None:
        if self._reached and self._link is not None and self._hide_until is None:
            self._hide_until = time.monotonic() + _HIDE_SECONDS
            with contextlib.suppress(WireError):
                self._link.send(Hide())


def _open_what_is_closed() -> None:
    """Open /dev/null for closed standard descriptors, before other files get their numbers."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= ERR:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)

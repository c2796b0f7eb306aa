"""The process that runs one attempt of a job: `python -m farandole.control.queue.runner DIRECTORY`.

It belongs to the job's user, and outlives the queue's daemon. It starts the attempt's command once, obeys orders that
the daemon writes down, and writes down how the attempt ended; see `attempt` for the files.

What runs is `farandole run`. If this process is killed, the launcher of a plain job is killed with it, whose agents
then end the workers: the attempt is over. An elastic job has a daemon of its own, which goes on; the next runner finds
it by its name and shows it again.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from farandole.base.wire.os_text import SHOWN
from farandole.control.launcher.daemon.client_protocol import HostsAre, ListHosts, ScheduleBatch
from farandole.control.launcher.daemon.client_requests import ask, status_of
from farandole.control.launcher.daemon.jobs import JobDirectory, jobs_of_this_user
from farandole.control.queue.attempt import Attempt, Ended, Request
from farandole.control.queue.model import AttemptReport, HostWorkers
from farandole.errors import LaunchError

POLL_SECONDS = 0.1
REPORT_SECONDS = 0.5
_AGAIN_SECONDS = 1.0
# After the grace of a job, its launcher needs a moment to end all that is left.
_EXTRA_SECONDS = 10.0
_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Run the attempt whose directory is named."""
    attempt = Attempt.at(Path(sys.argv[1]))
    lock = attempt.claim()
    if lock is None or attempt.ended() is not None:
        return 0  # Another runner has it, or it is over.
    request = attempt.request()
    Runner(attempt, request).run()
    return 0


class Runner:
    """Runs one attempt to its end, as the holder of its lock."""

    def __init__(self, attempt: Attempt, request: Request) -> None:
        self._attempt = attempt
        self._request = request
        self._log = os.open(attempt.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._told = ""
        """The order that was passed on."""
        self._kill_at = float("inf")
        self._report_at = 0.0

    def run(self) -> None:
        """Run it; at the end, that is written down."""
        if self._attempt.has_begun():
            self._go_on()
        elif self._attempt.ordered():
            self._attempt.write_ended(Ended(None))
        else:
            self._attempt.begin()
            self._to_the_end(("run", *self._request.command))

    def _go_on(self) -> None:
        """Take over from a runner that was killed."""
        if self._request.elastic and self._lives():
            self._to_the_end(self._attach)
        else:
            self._attempt.write_ended(Ended(None))

    @property
    def _attach(self) -> tuple[str, ...]:
        return ("run", "--color", "never", "--attach", self._request.local_name)

    def _to_the_end(self, words: tuple[str, ...]) -> None:
        """Show the job until it is over, whoever else takes it over meanwhile."""
        while True:
            code = self._run(words)
            if not (self._request.elastic and self._lives()):
                break
            time.sleep(_AGAIN_SECONDS)
            words = self._attach
        self._attempt.write_ended(Ended(code, bool(self._told)))

    def _run(self, words: tuple[str, ...]) -> int:
        """Run a command of ours to its end, and return its exit code as a shell would."""
        try:
            child = subprocess.Popen(
                [sys.executable, "-m", "farandole", *words],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                cwd=self._request.directory,
                env=dict(self._request.environment),
                preexec_fn=_end_with_parent(),
            )
        except OSError as error:
            said = f"error: it cannot be started in {self._request.directory}: {error}\n"
            os.write(self._log, said.encode("utf-8", SHOWN))
            return 126
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = child.wait(POLL_SECONDS)
                return code if code >= 0 else 128 - code
            self._obey(child)
            self._tell_how_it_is()

    # --- orders ------------------------------------------------------------------------------------------------------

    def _obey(self, child: subprocess.Popen[bytes]) -> None:
        order = self._attempt.ordered()
        now = time.monotonic()
        if order and not self._told:
            self._told = order
            self._kill_at = now + self._request.grace + _EXTRA_SECONDS
            saves = order == "suspend" and self._request.signal != "SIGTERM" and not self._request.elastic
            child.send_signal(getattr(signal, self._request.signal) if saves else signal.SIGTERM)
            if order == "kill":
                self._kill_at = now  # Not right behind the first: two signals that nobody has taken yet are one.
        elif order == "kill" and self._told != "kill":
            self._told = order
            child.send_signal(signal.SIGTERM)
            self._kill_at = min(self._kill_at, now + _EXTRA_SECONDS)
        elif now > self._kill_at:
            self._kill_at = now + _EXTRA_SECONDS
            child.send_signal(signal.SIGTERM)  # The second time, it ends all at once.

    # --- reports -----------------------------------------------------------------------------------------------------

    def _directory(self) -> JobDirectory | None:
        try:
            return jobs_of_this_user(self._request.environment).directory(self._request.local_name)
        except LaunchError:
            return None

    def _lives(self) -> bool:
        """Return whether the elastic job has a daemon, or another one can follow it."""
        directory = self._directory()
        return directory is not None and directory.record() is not None and directory.ended() is None

    def _tell_how_it_is(self) -> None:
        """Write down how the elastic job is, now and then."""
        at = time.time()
        if not self._request.elastic or time.monotonic() < self._report_at:
            return
        self._report_at = time.monotonic() + REPORT_SECONDS
        directory = self._directory()
        if directory is None or directory.record() is None:
            return
        with contextlib.suppress(LaunchError, OSError):
            answer = ask(directory, ListHosts())
            status = status_of(directory)
            if isinstance(answer, HostsAre) and status is not None:
                hosts = {row.name: HostWorkers(row.slots, len(row.workers)) for row in answer.rows}
                self._attempt.write_report(
                    AttemptReport(
                        at,
                        hosts,
                        status.size,
                        status.waits_for,
                        status.steps_per_second,
                        status.measures,
                        status.scheduled_batch,
                    )
                )
                # A launcher that has followed one that was killed knows of none, and is told again.
                if (batch := self._attempt.batch()) != status.scheduled_batch:
                    ask(directory, ScheduleBatch(batch))


def _end_with_parent() -> Callable[[], None]:
    """Return what has the kernel kill a child when this process ends."""
    libc = ctypes.CDLL(None)  # Loaded before the fork.
    parent = os.getpid()

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    return prepare


if __name__ == "__main__":
    sys.exit(main())

"""Elastic jobs on the hosts of a bed: trainings whose workers record each step."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Sequence

from step_books import PLAIN_SCRIPT, Books
from tests.hosts import jobs
from tests.hosts.bed import Bed
from tests.hosts.host import Host
from tests.hosts.jobs import FOLDER, alive
from waiting import until

END_SECONDS = 60.0
# For jobs in which no worker may be counted out for silence. By default one second is enough for that, and for that
# long a busy machine may leave a healthy worker without a processor.
PATIENCE = (*jobs.PATIENCE, "-x", "FARANDOLE_FAILURE_DEADLINE=20")


class Training:
    """A training by `plain_style.py`, started on the desk by `farandole run`.

    Attributes:
        bed: the bed of its hosts.
        books: the records of its workers.
        process: the launcher, or its client.
    """

    def __init__(self, bed: Bed, *options: str, script: Sequence[str] = (), patient: bool = True) -> None:
        """Start the training.

        Args:
            bed: the bed of its hosts.
            options: the options of `farandole run` with its hosts.
            script: the script's arguments.
            patient: whether silent workers and hosts count as lost only after longer times than usual.
        """
        self.bed = bed
        for host in (*bed.hosts, bed.desk):
            host.path(FOLDER).mkdir(exist_ok=True)
        self.books = Books([host.path(FOLDER) for host in bed.hosts])
        self._output = bed.desk.path(f"{FOLDER}/said")
        self.process = self._start(*(PATIENCE if patient else ()), *options, "python", PLAIN_SCRIPT, *script)

    def _start(self, *words: str) -> subprocess.Popen[str]:
        with open(self._output, "ab") as said:
            return self.bed.desk.start(
                [sys.executable, "-m", "farandole", "run", *words],
                folder=FOLDER,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
            )

    @property
    def said(self) -> str:
        """The launcher's output so far."""
        return self._output.read_text()

    def says(self, pattern: str, seconds: float = END_SECONDS) -> None:
        """Wait until the launcher's output matches a pattern."""
        try:
            until(lambda: re.search(pattern, self.said), f"the job says {pattern}", seconds)
        except BaseException as error:
            raise AssertionError(f"{error}; it said:\n{self.said}") from None

    def await_steps(self, more: int, size: int | None = None) -> None:
        """Wait for more steps and, if a size is given, for a world of this size."""
        try:
            goal = self.books.newest()["step"] + more
            until(lambda: self._reached(goal, size), f"{more} steps more, by {size or 'some'} workers", END_SECONDS)
        except BaseException as error:
            raise AssertionError(f"{error}; it said:\n{self.said}") from None

    def _reached(self, step: int, size: int | None) -> bool:
        assert self.process.poll() in (None, -signal.SIGKILL), "the job has ended"
        newest = self.books.newest()
        return newest["step"] >= step and size in (None, newest["size"])

    @property
    def generation(self) -> int:
        """The generation of the last world that the launcher has mentioned."""
        return int(re.findall(r"as generation (\d+)", self.said)[-1])

    def newest_world(self) -> list[int]:
        """Return the workers that have recorded one of the last steps."""
        last = self.books.newest()["step"]
        return [
            worker
            for worker in self.books.read()
            if any(each["step"] >= last - 1 for each in self.books.steps_of(worker))
        ]

    def lives(self, host: Host, worker: int) -> bool:
        """Return whether a worker has not ended."""
        return self.books.pid(worker) in [each.pid for each in self.bed.processes(host)]

    def kill(self, host: Host, *workers: int, number: int = signal.SIGKILL) -> None:
        """Send workers a signal, all at once; no-op for those that have ended. A killed worker has ended when this
        returns.
        """
        host.run(["kill", f"-{number}", *(str(self.books.pid(worker)) for worker in workers)])
        if number == signal.SIGKILL:
            # Until then they continue, and their steps could be mistaken for later ones.
            until(lambda: not any(self.lives(host, each) for each in workers), "the killed have ended", END_SECONDS)

    def attach(self, name: str) -> None:
        """Start another client."""
        self.process = self._start("--attach", name)

    def agent(self, host: Host) -> int:
        """Return the process id of a host's agent, on that host."""
        (agent,) = [
            each.pid
            for each in self.bed.processes(host)
            if "farandole.control.agent" in each.command and "sh -c" not in each.command
        ]
        return agent

    def finish(self) -> None:
        """End the training gracefully; check the workers' records, and that no process is left on any host."""
        self.books.stop()
        assert self.process.wait(END_SECONDS) == 0, self.said
        self.is_gone()
        assert self.books.wrongs() == [], self.said

    def is_gone(self) -> None:
        """Wait until no process of the job is left on any host."""
        for host in alive(self.bed):
            until(lambda host=host: not self.bed.processes(host), f"nothing is left on {host.name}", END_SECONDS)

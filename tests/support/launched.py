"""A launcher's process that a test has started: its output, its end, and the processes that it leaves behind."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from step_books import Books
from waiting import processes_with, until


@dataclass
class Job:
    """A `farandole run` that was started."""

    process: subprocess.Popen[bytes]
    directory: Path
    mark: str
    worlds: dict[int, dict[int, tuple[int, int]]] = field(default_factory=dict)

    @property
    def said(self) -> str:
        """The output so far."""
        return (self.directory / "said").read_text()

    def says(self, pattern: str, seconds: float = 30) -> re.Match[str]:
        """Wait until the output matches a pattern."""
        try:
            until(lambda: re.search(pattern, self.said), f"the job says {pattern}", seconds)
        except pytest.fail.Exception as error:
            raise AssertionError(f"{error}; it said:\n{self.said}") from None
        found = re.search(pattern, self.said)
        assert found is not None
        return found

    def world(self, generation: int, size: int) -> dict[int, tuple[int, int]]:
        """Wait until all workers of a world of this size have reported it; return worker and process id, by rank."""
        line = rf"\[(\d+)\]<stdout>:generation {generation} rank (\d+) of {size} pid (\d+)\n"
        try:
            # A launcher that follows another one may say a line again.
            until(lambda: len(set(re.findall(line, self.said))) == size, f"a world of {size}", 30)
        except pytest.fail.Exception as error:
            raise AssertionError(f"{error}; it said:\n{self.said}") from None
        found = [(int(rank), (int(worker), int(pid))) for worker, rank, pid in re.findall(line, self.said)]
        return dict(sorted(found))

    def hold(self, newcomer: int) -> None:
        """Delay the join of workers from this number on, whose order of arrival would be random."""
        (self.directory / "hold.new").write_text(str(newcomer))
        (self.directory / "hold.new").replace(self.directory / "hold")

    def let_in(self) -> None:
        """Allow the delayed workers to join."""
        (self.directory / "hold").unlink()

    def finish(self) -> int:
        """Make the workers finish; return the exit code. Check that no process is left."""
        (self.directory / "finish").touch()
        return self.end()

    def end(self, seconds: float = 60) -> int:
        """Wait for the end, and return the exit code. Check that no process is left, and no bug was told."""
        code = self.process.wait(seconds)
        if (self.directory / "said").is_file():  # Of a pipe, the test reads the end.
            assert "part of the launcher has failed" not in self.said, self.said
        # On a busy machine, a client does not wait for the very last moments of its daemon.
        until(lambda: not self.left(), lambda: f"nothing is left, such as {self.left()}", 10)
        return code

    def left(self) -> list[int]:
        """Return the living processes of this job, found by a variable that all of them inherit."""
        return [pid for pid in processes_with(self.mark) if pid != self.process.pid]

    def kill(self) -> None:
        """Kill all processes of the job, including those that are started meanwhile, such as another daemon."""
        self.process.kill()
        until(lambda: not self._kill_left(), "nothing is left")
        self.process.wait()

    def _kill_left(self) -> list[int]:
        """Kill the living processes of the job, and return them."""
        left = self.left()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):  # It may have ended with another one.
                os.kill(pid, signal.SIGKILL)
        return left


class Training:
    """A training by `plain_style.py` that was started.

    Attributes:
        job: the launcher's process.
        books: the records of its workers.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.books = Books([job.directory])

    def await_steps(self, more: int, size: int | None = None) -> None:
        """Wait for more steps and, if a size is given, for a world of this size."""
        try:
            self.books.await_steps(more, size)
        except pytest.fail.Exception as error:
            raise AssertionError(f"{error}; it said:\n{self.job.said}") from None

    def finish(self) -> None:
        """End it gracefully; check the workers' records, and that no process is left."""
        self.books.stop()
        assert self.job.end() == 0, self.job.said
        assert self.books.wrongs() == [], self.job.said

"""A launcher's process that a test has started: what it says, how it ends, and what it leaves behind."""

from __future__ import annotations

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
        """What it has printed so far."""
        return (self.directory / "said").read_text()

    def says(self, pattern: str, seconds: float = 30) -> re.Match[str]:
        """Wait until it has printed something like that."""
        try:
            until(lambda: re.search(pattern, self.said), f"the job says {pattern}", seconds)
        except pytest.fail.Exception as error:
            raise AssertionError(f"{error}; it said:\n{self.said}") from None
        found = re.search(pattern, self.said)
        assert found is not None
        return found

    def world(self, generation: int, size: int) -> dict[int, tuple[int, int]]:
        """Wait until all workers of a world of that size have said so; return worker and process id, by rank."""
        line = rf"\[(\d+)\]<stdout>:generation {generation} rank (\d+) of {size} pid (\d+)"
        try:
            # A launcher that follows another one may say a line again.
            until(lambda: len(set(re.findall(line, self.said))) == size, f"a world of {size}", 30)
        except pytest.fail.Exception as error:
            raise AssertionError(f"{error}; it said:\n{self.said}") from None
        found = [(int(rank), (int(worker), int(pid))) for worker, rank, pid in re.findall(line, self.said)]
        return dict(sorted(found))

    def finish(self) -> int:
        """Let the workers finish; return the exit code. Nothing may be left then."""
        (self.directory / "finish").touch()
        return self.end()

    def end(self, seconds: float = 60) -> int:
        """Return the exit code. Nothing may be left then."""
        code = self.process.wait(seconds)
        assert self.left() == []
        return code

    def left(self) -> list[int]:
        """Return the living processes of this job, found by a variable that all of them inherit."""
        return [pid for pid in processes_with(self.mark) if pid != self.process.pid]

    def kill(self) -> None:
        """Leave nothing of it."""
        for pid in [self.process.pid, *self.left()]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()


class Training:
    """A training by `plain_style.py` that was started.

    Attributes:
        job: its launcher.
        books: what its workers have written.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.books = Books([job.directory])

    def await_steps(self, more: int, size: int | None = None) -> None:
        """Wait for more steps and, if one is given, for a world of that size."""
        try:
            self.books.await_steps(more, size)
        except pytest.fail.Exception as error:
            raise AssertionError(f"{error}; it said:\n{self.job.said}") from None

    def finish(self) -> None:
        """Let it end in good order; what was seen has to be right, and nothing may be left."""
        self.books.stop()
        assert self.job.end() == 0, self.job.said
        assert self.books.wrongs() == [], self.job.said

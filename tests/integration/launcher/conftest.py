"""Starts `farandole run` on small scripts that use the roster directly, and looks for what is left afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from running_roster import Running
from waiting import processes_with, until

PREAMBLE = """\
import os, signal, subprocess, sys, time
from farandole.base.wire.rendezvous import RendezvousError
from farandole.base.wire.roster_client import RosterClient

rank, size = int(os.environ["FARANDOLE_RANK"]), int(os.environ["FARANDOLE_SIZE"])
here = os.environ["TEST_DIRECTORY"]

def connect():
    secret = bytes.fromhex(os.environ["FARANDOLE_SECRET"])
    return RosterClient.connect(os.environ["FARANDOLE_ROSTER"], secret, worker=rank)

def tell(name, text=""):
    path = os.path.join(here, name)
    with open(path + ".new", "w") as file:
        file.write(str(text))
    os.rename(path + ".new", path)
"""

Wait = Callable[[Callable[[], object], str], object]


@dataclass
class Job:
    """A `farandole run` that was started."""

    process: subprocess.Popen[str]
    directory: Path
    mark: str

    def told(self, name: str, seconds: float = 60) -> str:
        """Wait until a worker has told something under that name, and return it."""
        path = self.directory / name
        until(path.exists, f"a worker tells {name}", seconds)
        return path.read_text()

    def finish(self, seconds: float = 60) -> tuple[int, str, str]:
        """Wait for the end and return the exit code and what was printed; nothing may be left then."""
        out, err = self.process.communicate(timeout=seconds)
        assert self.left() == []
        assert "part of the launcher has failed" not in err, err
        return self.process.returncode, out, err

    def left(self) -> list[int]:
        """Return the living processes of this job, found by a variable that all of them inherit."""
        return [pid for pid in processes_with(self.mark) if pid != self.process.pid]

    def agent(self) -> int:
        """Return the process of the job's agent."""
        command = b"farandole.control.agent"
        (agent,) = [pid for pid in self.left() if command in Path(f"/proc/{pid}/cmdline").read_bytes()]
        return agent


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Return a function that starts a worker script through the launcher."""
    jobs: list[Job] = []

    def start(script: str, workers: int, *options: str, stdout: int = subprocess.PIPE) -> Job:
        path = tmp_path / "worker.py"
        path.write_text(PREAMBLE + textwrap.dedent(script))
        return start_command([sys.executable, str(path)], workers, *options, stdout=stdout)

    def start_command(command: list[str], workers: int, *options: str, stdout: int = subprocess.PIPE) -> Job:
        mark = f"TEST_MARK={tmp_path}-{len(jobs)}"
        process = subprocess.Popen(
            [sys.executable, "-m", "farandole", "run", "-np", str(workers), *options, *command],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TEST_DIRECTORY": str(tmp_path), "TEST_MARK": mark.partition("=")[2]},
            start_new_session=True,
        )
        jobs.append(Job(process, tmp_path, mark))
        return jobs[-1]

    start.command = start_command  # type: ignore[attr-defined]
    yield start
    for job in jobs:
        for pid in [job.process.pid, *job.left()]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        job.process.wait()
        for stream in (job.process.stdout, job.process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Running]]:
    """Return a function that starts a roster for a number of workers."""
    running: list[Running] = []

    def serve(size: int, **options: object) -> Running:
        running.append(Running(size, **options))
        return running[-1]

    yield serve
    for each in running:
        each.close()

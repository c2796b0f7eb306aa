"""Starts `farandole` commands of jobs that run in a daemon, and checks for remaining processes and files."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from waiting import processes_with, until

SUPPORT = Path(__file__).resolve().parent

WORKER = """
import os, signal, sys, time
here = os.environ["TEST_DIRECTORY"]

def wait_for(name):
    deadline = time.monotonic() + 600
    while not os.path.exists(os.path.join(here, name)):
        assert time.monotonic() < deadline
        time.sleep(0.01)

"""
COUNTING = "print('begun')\nwait_for('one')\nprint('one')\nwait_for('two')\nprint('two')\nsys.exit(7)"


class Client:
    """A `farandole` command whose output goes to a file."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self.process = process
        self._output = output

    @property
    def text(self) -> str:
        return self._output.read_text()

    def shows(self, text: str) -> None:
        until(lambda: text in self.text, lambda: f"it shows {text!r}; it shows {self.text!r}")

    def ends(self, seconds: float = 30) -> int:
        return self.process.wait(seconds)


class Bench:
    """Starts commands of one user with a separate home."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.home = directory / "cache"
        self.mark = f"TEST_MARK={directory}"
        self.grace = 5.0
        """Seconds that workers have to end by themselves."""
        self._clients: list[Client] = []

    @property
    def jobs(self) -> Path:
        return self.home / "farandole" / "jobs"

    @property
    def environment(self) -> dict[str, str]:
        paths = [str(SUPPORT), os.environ.get("PYTHONPATH", "")]
        return {
            **{name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FARANDOLE_PROGRESS")},
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "XDG_CACHE_HOME": str(self.home),
            "TEST_DIRECTORY": str(self.directory),
            "TEST_MARK": self.mark.partition("=")[2],
            "TEST_GRACE": str(self.grace),
            "TERM": "xterm-256color",
        }

    def command(self, *words: str) -> list[str]:
        return [sys.executable, str(SUPPORT / "static_in_daemon.py"), *words]

    def worker(self, script: str) -> list[str]:
        path = self.directory / f"worker{abs(hash(script))}.py"
        path.write_text(WORKER + script)
        return [sys.executable, str(path)]

    def start(self, *words: str, stdout: int | None = None) -> Client:
        output = self.directory / f"output{len(self._clients)}"
        with output.open("wb") as file:
            process = subprocess.Popen(
                self.command(*words),
                stdin=subprocess.DEVNULL,
                stdout=file if stdout is None else stdout,
                stderr=file,
                env=self.environment,
                start_new_session=True,
            )
        self._clients.append(Client(process, output))
        return self._clients[-1]

    def run(self, script: str, *options: str, job: str = "test", workers: int = 1, **more: int) -> Client:
        return self.start("run", "--job", job, "-np", str(workers), *options, *self.worker(script), **more)

    def ask(self, *words: str) -> tuple[int, str, str]:
        """Run a command to its end; return its exit code, output and error output."""
        done = subprocess.run(self.command(*words), env=self.environment, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout, done.stderr

    def go(self, name: str) -> None:
        (self.directory / name).touch()

    def daemon(self, job: str = "test") -> int:
        record = (self.jobs / job / "job.json").read_text()
        return int(re.search(r'"pid":(\d+)', record)[1])  # type: ignore[index]

    def log_of(self, job: str = "test") -> str:
        return (self.jobs / job / "output.log").read_text()

    def nothing_is_left(self) -> None:
        until(
            lambda: not processes_with(self.mark),
            lambda: f"nothing is left, such as {processes_with(self.mark)}",
        )
        assert list(self.jobs.iterdir()) == []

    def clean_up(self) -> None:
        for pid in processes_with(self.mark):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for client in self._clients:
            client.process.wait(30)
            if client.process.stdout is not None:
                client.process.stdout.close()

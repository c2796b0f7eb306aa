"""Jobs on the hosts of a bed: writing scripts, starting launchers, and checking for remaining processes."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.hosts.bed import Bed
from tests.hosts.host import Host
from waiting import until

FOLDER = "/root/job"
# For jobs whose hosts must not be lost. By default 1.75 s of silence are enough for that, and for that long a busy
# machine may leave an agent, or the launcher, without a processor.
PATIENCE = ("--host-timeout", "20")

# Without a framework, so that a worker starts in a fraction of a second.
PREAMBLE = """\
import array, os, signal, subprocess, sys, time
from farandole.worker.core import basics, buffers
from farandole.worker.core.dtype import Sum

rank, size = int(os.environ["FARANDOLE_RANK"]), int(os.environ["FARANDOLE_SIZE"])

def total(value):
    numbers = array.array("d", [value])
    buffers.allreduce(numbers, op=Sum)
    return numbers[0]

def tell(name, text=""):
    with open(name + ".new", "w") as file:
        file.write(str(text))
    os.rename(name + ".new", name)
"""


@dataclass
class Job:
    """A launcher that was started on a host."""

    bed: Bed
    process: subprocess.Popen[str]

    def finish(self, seconds: float = 60) -> tuple[int, str, str]:
        """Wait for the end; return exit code, output and error output; check that nothing is left, and no bug told."""
        out, err = self.process.communicate(timeout=seconds)
        left = {host.name: self.bed.processes(host) for host in alive(self.bed)}
        assert not any(left.values()), (left, err)
        assert "part of the launcher has failed" not in err, err
        return self.process.returncode, out, err

    def signal(self, number: signal.Signals) -> None:
        """Send the launcher a signal."""
        self.process.send_signal(number)


def alive(bed: Bed) -> list[Host]:
    """Return the hosts that were not switched off."""
    return [host for host in (*bed.hosts, bed.desk) if host.path("/proc/1").exists()]


def put(hosts: Iterable[Host], script: str, name: str = "train.py") -> None:
    """Write a script on hosts."""
    for host in hosts:
        folder = host.path(FOLDER)
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(PREAMBLE + textwrap.dedent(script))


def start(
    bed: Bed, arguments: str | Sequence[str], *, on: Host | None = None, verb: str = "run", patient: bool = True
) -> Job:
    """Start `farandole run` (or another verb) on a host, the desk by default, in the folder of the script.

    Args:
        bed: the bed of its hosts.
        arguments: the arguments after the verb.
        on: the host on which it is started.
        verb: the verb of the command.
        patient: whether a silent host counts as lost only after a longer time than usual.
    """
    words = arguments.split() if isinstance(arguments, str) else list(arguments)
    if verb == "run" and patient:
        words = [*PATIENCE, *words]
    host = on or bed.desk
    host.path(FOLDER).mkdir(exist_ok=True)
    process = host.start(
        [sys.executable, "-m", "farandole", verb, *words],
        folder=FOLDER,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    return Job(bed, process)


def told(host: Host, name: str, seconds: float = 30) -> str:
    """Wait until a worker has written a file in the folder of the script, and return its content."""
    path = host.path(f"{FOLDER}/{name}")
    until(path.exists, f"{host.name} has {name}", seconds)
    return path.read_text()

"""`farandole` in which every job has a daemon that runs a static job, so that daemons are tested separately."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from farandole.control.cli import main, run
from farandole.control.launcher.daemon import launch_request
from farandole.control.launcher.job.elastic import Elastic
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.job.machine import Machine
from farandole.control.launcher.job.spec import LaunchSpec
from farandole.control.launcher.output.console import Console
from farandole.control.launcher.slots import decide
from farandole.control.launcher.start import launch as start
from farandole.control.launcher.supervise.control import ControlledJob, HostRow, Status
from farandole.control.launcher.supervise.outcome import JobOutcome
from farandole.control.launcher.supervise.supervisor import Supervisor
from farandole.errors import SpecError


class FakeJob:
    """A static job that pretends to have hosts."""

    def __init__(self, supervisor: Supervisor, size: int) -> None:
        self._size = size
        self._hosts = {"here": HostRow("here", size, tuple(range(size)), "ready")}
        self.stop = supervisor.stop

    def add_host(self, host: Host, slots: int) -> str:
        self._hosts[host.label] = HostRow(host.label, slots, (), "ready")
        return f"{host.label} joins with {slots} slots"

    def remove_host(self, name: str) -> str:
        if name not in self._hosts:
            raise SpecError(f"the job has no host {name}", f"it has {', '.join(self._hosts)}")
        del self._hosts[name]
        return f"{name} is removed"

    def drain_host(self, name: str) -> str:
        row = self._hosts[name]
        self._hosts[name] = HostRow(name, row.slots, row.workers, "draining")
        return f"{name} is drained"

    def scale(self, workers: int) -> str:
        self._size = workers
        return f"at most {workers} workers"

    def list_hosts(self) -> Sequence[HostRow]:
        return tuple(self._hosts.values())

    def status(self) -> Status:
        return {
            "size": self._size,
            "generation": 1,
            "waits_for": "",
            "steps_per_second": None,
            "measures": (),
            "scheduled_batch": 0,
        }


async def launch(
    spec: LaunchSpec, machine: Machine, console: Console, *, started: Callable[[ControlledJob], None], **rest: Any
) -> JobOutcome:
    """Run the launch as a static job, and report a `FakeJob` to `started`."""
    decide.GRACE_SECONDS = float(os.environ["TEST_GRACE"])
    return await start.launch(
        dataclasses.replace(spec, elastic=None),
        machine,
        console,
        started=lambda job: started(FakeJob(job, spec.num_proc or 1)),
        **rest,
    )


def _make_all_elastic() -> None:
    read = run.read_launch
    run.read_launch = lambda given: dataclasses.replace(read(given), elastic=Elastic(min_size=1, max_size=None))
    launch_request.LaunchRequest.__init__.__defaults__ = (False, None, "static_in_daemon:launch")  # type: ignore[misc]


if __name__ == "__main__":
    _make_all_elastic()
    sys.exit(main.main())

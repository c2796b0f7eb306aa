"""The context of a launch, for jobs of any kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from farandole.control.launcher.agents.reception import Reception
from farandole.control.launcher.job.machine import Machine
from farandole.control.launcher.job.spec import LaunchSpec
from farandole.control.launcher.output.console import Console
from farandole.control.launcher.supervise.outcome import Observer, Running

SECRET_BYTES = 32


@dataclass(frozen=True)
class LaunchContext:
    """The spec of one job, and the objects that its output and reports go to."""

    spec: LaunchSpec
    machine: Machine
    """The machine that the launcher runs on."""
    console: Console
    """The terminal for the output."""
    log: Callable[[str], None]
    """Receives lines that are printed with --verbose only."""
    started: Callable[[Running], None]
    """Called with the job, whose `stop` ends it early."""
    call: bytes | None
    """The pickled call that the workers fetch, if they run a function."""
    observer: Observer
    """Notified of failures at once."""
    name: str = ""
    """The name of the job; "" if it has none."""
    reception: Reception | None = None
    """Accepts the hosts of the job, which dial; None: the launcher connects to them."""

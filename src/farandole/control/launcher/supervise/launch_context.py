"""What starting a job of any kind is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from farandole.control.launcher.job.machine import Machine
from farandole.control.launcher.job.spec import LaunchSpec
from farandole.control.launcher.output.console import Console
from farandole.control.launcher.supervise.outcome import Observer, Running

SECRET_BYTES = 32


@dataclass(frozen=True)
class LaunchContext:
    """One job, and what is told of it."""

    spec: LaunchSpec
    machine: Machine
    """The one that this runs on."""
    console: Console
    """Where output goes."""
    log: Callable[[str], None]
    """Takes lines that are printed with --verbose only."""
    started: Callable[[Running], None]
    """Called with the job, whose `stop` ends it early."""
    call: bytes | None
    """The pickled call that the workers fetch, if they run a function."""
    observer: Observer
    """Hears of failures at once."""
    name: str = ""
    """By which the user knows the job; "": it has none."""

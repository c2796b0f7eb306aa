"""What starting a job of any kind is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from farandole.base.wire.frames import FRAME_LIMIT, LARGEST_FRAME
from farandole.control.launcher.job.machine import Machine
from farandole.control.launcher.job.spec import LaunchSpec
from farandole.control.launcher.output.console import Console
from farandole.control.launcher.supervise.outcome import Observer, Running
from farandole.control.launcher.supervise.supervisor import Supervisor
from farandole.control.roster.service import RosterService

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

    def roster(self, secret: bytes, supervisor: Callable[[], Supervisor], **options: Any) -> RosterService:
        """Return the roster of the job, which does not listen yet.

        Args:
            secret: what workers must prove to hold.
            supervisor: returns the supervisor, which is told what workers say of themselves.
            options: see `RosterService`.
        """
        return RosterService(
            secret=secret,
            on_failure=lambda worker, failure: supervisor().failure_reported(worker, failure),
            on_progress=lambda worker, progress: supervisor().progress_reported(worker, progress),
            on_measures=lambda measures: supervisor().measured(measures),
            log=self.log,
            call=self.call,
            frame_limit=FRAME_LIMIT if self.call is None else LARGEST_FRAME,
            **options,
        )

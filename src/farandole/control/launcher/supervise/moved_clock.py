"""Converts times of a launcher on another machine, which has another monotonic clock.

A successor on the same machine reads the same clock. Between machines, the difference of the clocks is computed from
their times of day, whose error does not matter for periods of seconds and minutes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from farandole.base.wire import clock
from farandole.control.launcher.failure.record import WorkerRecord
from farandole.control.launcher.slots.job_state import FailureRun, JobState, Site, Slot


@dataclass(frozen=True)
class ClockReading:
    """A reading of a monotonic clock, and the identity of that clock."""

    identity: str = field(default_factory=clock.identity)
    monotonic: float = field(default_factory=time.monotonic)
    wall: float = field(default_factory=time.time)
    """Seconds since 1970."""

    def seconds_to(self, other: ClockReading) -> float:
        """Return the seconds to add to a time on this clock to get the same moment on the other one."""
        if self.identity and self.identity == other.identity:
            return 0.0
        return (other.monotonic - self.monotonic) - (other.wall - self.wall)


def moved_record(record: WorkerRecord, seconds: float) -> WorkerRecord:
    """Return a record on a clock that is ahead by `seconds`."""
    report = None if record.report_time is None else record.report_time + seconds
    return replace(record, exit_time=record.exit_time + seconds if record.ended else 0.0, report_time=report)


def moved_state(state: JobState, seconds: float) -> JobState:
    """Return a state on a clock that is ahead by `seconds`."""
    return replace(
        state,
        sites=tuple(_moved_site(site, seconds) for site in state.sites),
        joined_at={worker: at + seconds for worker, at in state.joined_at.items()},
        failure_run=_moved_run(state.failure_run, seconds),
        short_since=None if state.short_since is None else state.short_since + seconds,
        end=None if state.end is None else replace(state.end, since=state.end.since + seconds),
    )


def _moved_run(run: FailureRun, seconds: float) -> FailureRun:
    return run if run.since is None else replace(run, since=run.since + seconds)


def _moved_site(site: Site, seconds: float) -> Site:
    return replace(
        site,
        slots=tuple(_moved_slot(slot, seconds) for slot in site.slots),
        not_before=_moved(site.not_before, seconds),
        failed_at=tuple(at + seconds for at in site.failed_at),
        barred_until=_moved(site.barred_until, seconds),
        noticed_at=_moved(site.noticed_at, seconds),
        end_at=None if site.end_at is None else site.end_at + seconds,
    )


def _moved_slot(slot: Slot, seconds: float) -> Slot:
    return replace(slot, not_before=_moved(slot.not_before, seconds))


def _moved(at: float, seconds: float) -> float:
    return at + seconds if at else 0.0  # 0 is not a time: it means at once, or never.

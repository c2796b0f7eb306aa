"""What a job daemon asks of the job that it runs.

`ElasticJob` is such a job. Its methods are called in the loop's thread and return at once: what
takes its time goes on behind them, and is told on the console. Those that change something return one line for people
that says what happens now, and raise `SpecError` when it cannot be done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypedDict

import msgspec

from farandole.base.wire.rendezvous import Measures
from farandole.control.jobs.view import JobView
from farandole.control.launcher.job.host_list import Host


class HostRow(msgspec.Struct, frozen=True):
    """One host of a job, as `farandole hosts` shows it."""

    name: str
    slots: int
    workers: tuple[int, ...]
    """The numbers of the workers that live there."""
    state: str
    """For people, in a few words: `ready`, `draining`, `tried again in 8 s`."""


class Status(TypedDict):
    """How a job is, as `farandole jobs` shows it."""

    size: int
    """Workers of the current world; 0 before the first."""
    generation: int
    waits_for: str
    """For what the job waits, and until when; "" when it goes on."""
    steps_per_second: float | None
    """Of the last seconds; None while that is not known."""
    measures: tuple[Measures, ...]
    """What a training whose batch adapts itself has measured, the latest at the end."""
    scheduled_batch: int
    """The batch of all workers that `schedule_batch` has set; 0: the job chooses."""


class Job(Protocol):
    """An elastic job that runs."""

    def stop(self, code: int, why: str) -> None:
        """End the job in good order; a second time: at once. `code` becomes its exit code."""

    def add_host(self, host: Host, slots: int) -> str:
        """Let workers run on another host as well, or on more slots of one that the job has."""

    def remove_host(self, name: str) -> str:
        """Take a host away at once, with the workers that live there."""

    def drain_host(self, name: str) -> str:
        """Take a host away when the workers there have finished their step and left."""

    def scale(self, workers: int) -> str:
        """Let the job have at most so many workers."""

    def schedule_batch(self, samples: int) -> str:
        """Let a training whose batch adapts itself have that one; 0: as it chooses."""

    def kill(self, rank: int, number: int) -> str:
        """Send one worker a signal."""

    def list_hosts(self) -> Sequence[HostRow]:
        """Return all hosts that the job has or waits for."""

    def status(self) -> Status:
        """Return how the job is."""

    def view(self) -> JobView:
        """Return all that can be seen of the job, but what its workers print."""

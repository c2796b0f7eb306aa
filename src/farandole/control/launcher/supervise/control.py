"""The requests that a daemon can send to its running job.

`ElasticJob` implements them. The methods are called in the loop's thread and return at once: slow work continues in the
background, and reports to the console. Methods that change something return one line for people about the consequences,
and raise `SpecError` if the change is not possible.
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
    """The numbers of the live workers there."""
    state: str
    """A few words for people: `ready`, `draining`, `tried again in 8 s`."""


class Status(TypedDict):
    """The status of a job, as `farandole jobs` shows it."""

    size: int
    """Number of workers of the current world; 0 before the first."""
    generation: int
    waits_for: str
    """The reason why the job waits, and until when; "" if it does not wait."""
    steps_per_second: float | None
    """Average of the last seconds; None if unknown."""
    measures: tuple[Measures, ...]
    """The measurements of a training with an adaptive batch size, latest last."""
    scheduled_batch: int
    """The batch of all workers together that `schedule_batch` has set, in samples; 0 if the job chooses."""


class ControlledJob(Protocol):
    """A running elastic job."""

    def stop(self, code: int, why: str) -> None:
        """End the job with its grace period; a second call ends it at once. `code` becomes its exit code."""

    def add_host(self, host: Host, slots: int) -> str:
        """Let workers run on another host, or on more slots of a host that the job has."""

    def remove_host(self, name: str) -> str:
        """Remove a host at once, with its workers."""

    def drain_host(self, name: str) -> str:
        """Remove a host once its workers have finished their step and left."""

    def scale(self, workers: int) -> str:
        """Limit the number of workers."""

    def schedule_batch(self, samples: int) -> str:
        """Set the batch of a training with an adaptive batch size, in samples; 0 lets the job choose."""

    def kill(self, rank: int, number: int) -> str:
        """Send a signal to one worker."""

    def list_hosts(self) -> Sequence[HostRow]:
        """Return all hosts that the job has or waits for."""

    def status(self) -> Status:
        """Return the status of the job."""

    def view(self) -> JobView:
        """Return the whole state of the job, except its output."""

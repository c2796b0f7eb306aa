"""The interface of every place that runs jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from farandole.control.jobs.spec import JobSpec
from farandole.control.jobs.status import JobStatus
from farandole.control.jobs.view import JobView


class JobService(Protocol):
    """A place that runs jobs. Every method blocks until it is answered or fails, which takes seconds at most.

    Every method raises `Unreachable` when the place does not answer, `UnknownJob` when there is no job of that name or
    this user may not see it, `NotAllowed` when this user lacks the permission, and `Refused` when the operation is
    impossible, or impossible in the job's present state.
    """

    def submit(self, spec: JobSpec) -> str:
        """Submit a job and return its name. Once this returns, the job is stored durably."""

    def preview(self, spec: JobSpec) -> str:
        """Return the text that `submit` would hand in (a script, or an object as YAML or JSON), without submitting it.

        Raises the errors of `submit`, as far as they can be known without asking the place.
        """

    def jobs(self) -> Sequence[JobStatus]:
        """Return the status of all known jobs, the oldest first."""

    def status(self, name: str) -> JobStatus:
        """Return the current status of a job."""

    def logs(self, name: str, follow: bool = False, rank: int | None = None) -> Iterator[str]:
        """Yield the lines that a job's workers printed, each with its end of line.

        Args:
            name: name of the job.
            follow: whether to continue until the job is over.
            rank: the rank whose lines are yielded; None: all ranks.
        """

    def scale(self, name: str, workers: int) -> None:
        """Request another number of workers for a job."""

    def cancel(self, name: str) -> None:
        """End a job gracefully. A second call kills it."""

    def suspend(self, name: str) -> None:
        """Suspend a job: it has no workers until it is resumed."""

    def resume(self, name: str) -> None:
        """Resume a suspended job."""


@runtime_checkable
class ShowsWorkers(Protocol):
    """A `JobService` that shows the workers of a running job."""

    def view(self, name: str, lines_from: int = 0) -> JobView:
        """Return the view of a running job, with its output from line `lines_from` on."""


@runtime_checkable
class ShowsCluster(Protocol):
    """A `JobService` that shares hosts among its jobs."""

    def cluster(self) -> Mapping[str, Any]:
        """Return the hosts, the settings, and the number of jobs in each state, as plain data."""

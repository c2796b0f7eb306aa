"""What every place that runs jobs can do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from farandole.control.jobs.spec import JobSpec
from farandole.control.jobs.status import JobStatus
from farandole.control.jobs.view import JobView


class JobService(Protocol):
    """A place that runs jobs. Every method waits for its answer, which comes or fails within seconds.

    Every method raises `Unreachable` when the place does not answer, `UnknownJob` for a name that no job has (a
    job that this user may not know of has none), `NotAllowed` for what this user may not do, and `Refused` for what
    cannot be done, or not in the state that the job is in.
    """

    def submit(self, spec: JobSpec) -> str:
        """Take a job; return its name. When this returns, the job is not lost any more."""

    def preview(self, spec: JobSpec) -> str:
        """Return the text of what `submit` would hand in, and hand in nothing: a script, or an object as YAML or JSON.

        It is refused like `submit`, as far as that is known without asking the place.
        """

    def jobs(self) -> Sequence[JobStatus]:
        """Return all jobs that are known, the oldest first."""

    def status(self, name: str) -> JobStatus:
        """Return how a job is."""

    def logs(self, name: str, follow: bool = False, rank: int | None = None) -> Iterator[str]:
        """Yield lines that its workers printed, each with its end of line.

        Args:
            name: of the job.
            follow: go on until the job is over.
            rank: only this worker's; None: all workers'.
        """

    def scale(self, name: str, workers: int) -> None:
        """Ask for another number of workers."""

    def cancel(self, name: str) -> None:
        """End a job in good order; a second time: at once."""

    def suspend(self, name: str) -> None:
        """Take a job's workers away until it is resumed."""

    def resume(self, name: str) -> None:
        """Let a suspended job go on."""


@runtime_checkable
class ShowsWorkers(Protocol):
    """A `JobService` that knows more of a running job than its status."""

    def view(self, name: str, lines_from: int = 0) -> JobView:
        """Return everything that can be seen of a job that runs, with its output from a line on."""


@runtime_checkable
class ShowsCluster(Protocol):
    """A `JobService` that shares hosts among its jobs."""

    def cluster(self) -> Mapping[str, Any]:
        """Return the hosts, the settings, and the number of jobs in each state."""

"""A fake of a place that runs jobs: they do nothing, and change state when a test changes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from farandole.control.jobs.errors import Refused, UnknownJob
from farandole.control.jobs.spec import JobSpec
from farandole.control.jobs.status import JobState, JobStatus


class FakeJobs:
    """A `JobService` in memory. Jobs wait; when their log is followed, they print `lines` and end with `exit_code`."""

    def __init__(self) -> None:
        self.specs: dict[str, JobSpec] = {}
        self.told: dict[str, JobStatus] = {}
        self.lines: Sequence[str] = ()
        self.exit_code = 0
        self.interrupted = False
        """Whether Ctrl-C comes while the log is followed."""

    def submit(self, spec: JobSpec) -> str:
        name = spec.name or f"job-{len(self.specs)}"
        self.specs[name] = spec
        waits = "waits: 0 of 4 slots are free"
        wanted = spec.workers.replicas
        self.told[name] = JobStatus(name, JobState.WAITING, "fake", spec.command, wanted=wanted, reason=waits)
        return name

    def preview(self, spec: JobSpec) -> str:
        return f"{spec.name}: {' '.join(spec.command)}\n"

    def jobs(self) -> Sequence[JobStatus]:
        return list(self.told.values())

    def status(self, name: str) -> JobStatus:
        if name not in self.told:
            raise UnknownJob(f"there is no job {name}", "farandole jobs lists them")
        return self.told[name]

    def logs(self, name: str, follow: bool = False, rank: int | None = None) -> Iterator[str]:
        self.status(name)
        yield from self.lines
        if self.interrupted:
            raise KeyboardInterrupt
        if follow:
            state = JobState.FAILED if self.exit_code else JobState.SUCCEEDED
            self.change(name, state=state, exit_code=self.exit_code, reason=f"ended with code {self.exit_code}")

    def scale(self, name: str, workers: int) -> None:
        self.change(name, wanted=workers)

    def cancel(self, name: str) -> None:
        if self.status(name).state.is_over:
            raise Refused(f"job {name} is over", "it cannot be cancelled any more")
        self.change(name, state=JobState.CANCELLED)

    def suspend(self, name: str) -> None:
        self.change(name, state=JobState.SUSPENDED)

    def resume(self, name: str) -> None:
        self.change(name, state=JobState.WAITING)

    def change(self, name: str, **changes: object) -> None:
        """Change fields of a job."""
        self.told[name] = msgspec.structs.replace(self.status(name), **changes)


THE_ONE = FakeJobs()


def connect(environment: Mapping[str, str]) -> FakeJobs:
    """Return the fake that tests and the command line share."""
    return THE_ONE

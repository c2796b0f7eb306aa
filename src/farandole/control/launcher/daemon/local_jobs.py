"""The place `local`: this user's elastic jobs on this machine, each with its own daemon."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import NoReturn

from msgspec.structs import replace

from farandole.control.jobs.errors import Refused, UnknownJob, Unreachable
from farandole.control.jobs.log_lines import follow_file, of_rank
from farandole.control.jobs.spec import JobSpec
from farandole.control.jobs.status import JobState, JobStatus, RankStatus
from farandole.control.jobs.view import JobView
from farandole.control.launcher.daemon.client_protocol import Done, HostsAre, ListHosts, Scale
from farandole.control.launcher.daemon.client_requests import ask, status_of, stop, view_of
from farandole.control.launcher.daemon.jobs import JobDirectory, JobRecord, Jobs, jobs_of_this_user
from farandole.errors import LaunchError, SpecError

_NO_SUBMIT = "farandole run --min-np 1 -np 2 python train.py starts one here; farandole queue start starts a queue"


class LocalJobs:
    """A `JobService` of the jobs that `farandole run` has started."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def submit(self, spec: JobSpec) -> str:
        """Refuse: jobs cannot wait for slots here."""
        raise Refused("this machine has no queue for jobs", _NO_SUBMIT)

    def preview(self, spec: JobSpec) -> str:
        """Refuse, like `submit`."""
        return self.submit(spec)

    def jobs(self) -> Sequence[JobStatus]:
        """Return this user's jobs, oldest first."""
        return [_status(directory, record) for directory, record in self._jobs.known()]

    def status(self, name: str) -> JobStatus:
        """Return the status of a job, with its workers."""
        directory, record = self._find(name)
        status = _status(directory, record)
        if status.state is not JobState.RUNNING:
            return status
        try:
            answer = ask(directory, ListHosts())
        except LaunchError:
            return status
        rows = answer.rows if isinstance(answer, HostsAre) else ()
        ranks = [RankStatus(worker, row.name, row.state) for row in rows for worker in row.workers]
        hosts = tuple(f"{row.name}:{row.slots}" for row in rows)
        return replace(status, hosts=hosts, ranks=tuple(sorted(ranks, key=lambda rank: rank.rank)))

    def view(self, name: str, lines_from: int = 0) -> JobView:
        """Return the visible state of a running job; see `JobView`."""
        try:
            return view_of(self._running(name), lines_from)
        except LaunchError as error:
            raise Unreachable(str(error)) from None

    def logs(self, name: str, follow: bool = False, rank: int | None = None) -> Iterator[str]:
        """Yield the output from the times when no terminal showed the job."""
        directory, _record = self._find(name)
        if not directory.log.exists() and directory.ended() is None:
            raise Refused(f"the output of job {name} is shown only where it was started", "it has a fixed size")

        def is_over() -> bool:
            return directory.ended() is not None or directory.record() is None

        return of_rank(follow_file(directory.log, is_over if follow else None), rank)

    def scale(self, name: str, workers: int) -> None:
        """Limit the number of workers of a job."""
        try:
            answer = ask(self._running(name), Scale(workers))
        except SpecError as error:
            raise Refused(error.message, error.hint) from None
        except LaunchError as error:
            raise Unreachable(str(error)) from None
        assert isinstance(answer, Done)

    def cancel(self, name: str) -> None:
        """End the job with its grace period, or at once at the second call."""
        try:
            stop(self._running(name))
        except LaunchError as error:
            raise Unreachable(str(error), "repeat the command to kill its workers") from None

    def suspend(self, name: str) -> None:
        """Refuse: a job here keeps its machine until it ends."""
        self._running(name)
        self._cannot("be suspended")

    def resume(self, name: str) -> None:
        """Refuse: see `suspend`."""
        self._running(name)
        self._cannot("be resumed")

    def _cannot(self, what: str) -> NoReturn:
        raise Refused(f"a job that farandole run has started cannot {what}", "use a queue: farandole queue start")

    def _running(self, name: str) -> JobDirectory:
        directory, record = self._find(name)
        if record.host != socket.gethostname():
            raise Unreachable(f"job {name} runs on host {record.host}", f"log in there: ssh {record.host}")
        if directory.ended() is not None:
            raise Refused(f"job {name} has ended", f"farandole run --attach {name} shows its end")
        return directory

    def _find(self, name: str) -> tuple[JobDirectory, JobRecord]:
        jobs = self._jobs.known()
        for directory, record in jobs:
            if record.name == name:
                return directory, record
        names = ", ".join(record.name for _, record in jobs)
        raise UnknownJob(f"there is no job {name}", f"there are {names}" if names else "no job is running")


def _status(directory: JobDirectory, record: JobRecord) -> JobStatus:
    status = JobStatus(
        record.name, JobState.RUNNING, "local", record.command, created=record.started, started=record.started
    )
    ended = directory.ended()
    if ended is not None:
        state = JobState.SUCCEEDED if ended.exit_code == 0 else JobState.FAILED
        return replace(status, state=state, exit_code=ended.exit_code, reason=f"ended with code {ended.exit_code}")
    if record.host != socket.gethostname():
        return replace(status, reason=f"on host {record.host}")
    now = status_of(directory)
    if now is None:
        return replace(status, reason="its launcher does not answer")
    return replace(
        status, workers=now.size, wanted=now.size, reason=now.waits_for, steps_per_second=now.steps_per_second
    )


def connect(environment: Mapping[str, str]) -> LocalJobs:
    """Return the service of this user's jobs.

    Raises:
        Unreachable: there is no directory for them.
    """
    try:
        return LocalJobs(jobs_of_this_user(environment))
    except SpecError as error:
        raise Unreachable(error.message, error.hint) from None

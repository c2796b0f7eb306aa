"""Sources of a dashboard's data: a place of `farandole.control.jobs`, or the address of one job's metrics."""

from __future__ import annotations

import collections
import contextlib
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from farandole.base.wire.encoding import decode_json
from farandole.control.jobs.errors import JobError, Refused, Unreachable
from farandole.control.jobs.log_lines import rank_and_text
from farandole.control.jobs.places import connect_to_jobs
from farandole.control.jobs.service import JobService, ShowsCluster, ShowsWorkers
from farandole.control.jobs.status import JobState, JobStatus
from farandole.control.jobs.view import JobView, Moment, OutputLine, WorkerView

URL_SECONDS = 5.0
MOST_LINES = 2000
MOST_CHARACTERS = 2000
"""Maximum length of a line, in characters."""
_FINISHED_WORDS = ("exited", "finished", "succeeded", "failed", "ended")


class JobSource(Protocol):
    """The interface of a dashboard's data source. Every method may wait, and may raise `JobError`."""

    def jobs(self) -> Sequence[JobStatus]:
        """Return all jobs, oldest first."""

    def view(self, name: str, lines_from: int) -> tuple[JobStatus, JobView]:
        """Return a job's state and the data of its view."""

    def output(self, name: str) -> Sequence[OutputLine]:
        """Return the last lines of a job's output, if `view` has none."""

    def cluster(self) -> Mapping[str, Any] | None:
        """Return hosts, settings and job counts of a queue; None without a queue."""


class PlaceSource:
    """The jobs of one place."""

    def __init__(self, service: JobService) -> None:
        """Show the jobs of the place with this service."""
        self._service = service

    def jobs(self) -> Sequence[JobStatus]:
        """Return the jobs of the place."""
        return self._service.jobs()

    def view(self, name: str, lines_from: int) -> tuple[JobStatus, JobView]:
        """Return a job's state, and its launcher's data if available."""
        status = self._service.status(name)
        if isinstance(self._service, ShowsWorkers) and status.state is JobState.RUNNING:
            with contextlib.suppress(JobError):  # It may have just ended, or be busy: the status suffices then.
                return status, self._service.view(name, lines_from)
        return status, view_of_status(status)

    def output(self, name: str) -> Sequence[OutputLine]:
        """Return the end of the job's log."""
        lines = collections.deque(enumerate(self._service.logs(name)), MOST_LINES)
        return [line_of_log(number, text) for number, text in lines]

    def cluster(self) -> Mapping[str, Any] | None:
        """Return the hosts of the place, its settings and its numbers of jobs, if it shares hosts among jobs."""
        return self._service.cluster() if isinstance(self._service, ShowsCluster) else None


class UrlSource:
    """One job, by the address of its metrics: for jobs of fixed size, and for machines reached through a tunnel.

    Args:
        url: the address, such as http://127.0.0.1:9478.
        token: the token of the metrics; "": none is needed.
    """

    def __init__(self, url: str, token: str) -> None:
        self._url = url.rstrip("/").removesuffix("/metrics")
        self._token = token

    def jobs(self) -> Sequence[JobStatus]:
        """Return the one job."""
        return [self.view("", 0)[0]]

    def view(self, name: str, lines_from: int) -> tuple[JobStatus, JobView]:
        """Return the state and the view from the launcher's answer."""
        try:
            view = decode_json(self._get(f"/view?lines_from={lines_from}"), JobView)
        except msgspec.DecodeError as error:
            hint = "use the address of a job's metrics, not of a worker's"
            raise Refused(f"{self._url} has no data about a job: {error}", hint) from None
        begun = view.moments[0].at if view.moments else None
        status = JobStatus(
            view.name,
            JobState.RUNNING,
            "url",
            workers=view.size,
            wanted=view.size,
            reason=view.state,
            created=begun,
            started=begun,
            steps_per_second=view.per_second,
        )
        return status, view

    def output(self, name: str) -> Sequence[OutputLine]:
        """Return no lines: the view contains them all."""
        return ()

    def cluster(self) -> None:
        """Return None: there is only one job."""

    def _get(self, path: str) -> bytes:
        request = urllib.request.Request(self._url + path)
        if self._token:
            # http.client makes one byte of each letter; the token is sent as UTF-8.
            request.add_header("Authorization", f"Bearer {self._token}".encode().decode("latin-1"))
        try:
            with urllib.request.urlopen(request, timeout=URL_SECONDS) as answer:
                content: bytes = answer.read()
                return content
        except urllib.error.HTTPError as error:
            error.close()
            hint = "set FARANDOLE_METRICS_TOKEN to the job's" if error.code == 401 else "is it the metrics of a job?"
            raise Refused(f"{self._url} answers {error.code}", hint) from None
        except (OSError, ValueError) as error:
            why = getattr(error, "reason", error)  # Without urllib's brackets.
            raise Unreachable(f"{self._url} does not answer: {why}", "is the job running, with --metrics?") from None


def view_of_status(status: JobStatus) -> JobView:
    """Return the view of a job of which only the status is known."""
    workers = tuple(
        WorkerView(
            each.rank,
            each.rank,
            each.place,
            runs=status.state.has_slots and not any(word in each.state.lower() for word in _FINISHED_WORDS),
            end="" if each.state.lower() in ("running", "ready") else each.state,
        )
        for each in status.ranks
    )
    return JobView(
        name=status.name,
        state=status.reason,
        size=status.workers,
        per_second=status.steps_per_second,
        workers=workers,
        moments=tuple(Moment(each.at, "event", each.text) for each in status.events),
    )


def line_of_log(number: int, text: str) -> OutputLine:
    """Return a line of a log, which may begin with `[RANK]<stdout>:`."""
    rank, error, rest = rank_and_text(text.rstrip("\r\n"))
    return OutputLine(number, rank, error, rest[:MOST_CHARACTERS])


def source_for(
    job: str | None,
    place: str | None,
    environment: Mapping[str, str] = os.environ,
    warn: Callable[[Unreachable], None] = lambda _: None,
) -> JobSource:
    """Return the source that a command line names.

    Args:
        job: a name, or the address of a job's metrics.
        place: the place of the job; None: the default.
        environment: the environment of this process.
        warn: called with the error of a default place that does not answer and is skipped.

    Raises:
        JobError: there is no such place, or it does not answer.
    """
    if job is not None and job.startswith(("http://", "https://")):
        return UrlSource(job, environment.get("FARANDOLE_METRICS_TOKEN", ""))
    _name, service = connect_to_jobs(place, environment, job, warn)
    return PlaceSource(service)

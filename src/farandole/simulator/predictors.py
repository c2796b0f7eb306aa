"""Predictors: what a policy may be told of jobs that have not ended. One class for each way to know it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from farandole.scheduler.job import JobView


class Given:
    """Nothing but what users gave."""

    def finished(self, job: JobView, ran: float) -> None:
        pass

    def predict(self, job: JobView) -> JobView:
        return job


@dataclass
class _Seen:
    """Sums over the finished jobs of one application."""

    jobs: int = 0
    seconds: float = 0.0
    progress: float = 0.0


class History:
    """What finished jobs of the same application needed, on average."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def finished(self, job: JobView, ran: float) -> None:
        seen = self._seen.setdefault(job.application, _Seen())
        seen.jobs += 1
        seen.seconds += ran
        seen.progress += job.report.progress if job.report else 0.0

    def predict(self, job: JobView) -> JobView:
        seen = self._seen.get(job.application)
        if seen is None or not job.application:
            return job
        return replace(job, duration=seen.seconds / seen.jobs, total_progress=seen.progress / seen.jobs)


class Truth:
    """The truth: an oracle, to see how much better a policy would be that knew it."""

    def __init__(self, durations: Mapping[str, float], totals: Mapping[str, float]) -> None:
        self._durations = durations
        self._totals = totals

    def finished(self, job: JobView, ran: float) -> None:
        pass

    def predict(self, job: JobView) -> JobView:
        return replace(job, duration=self._durations.get(job.name), total_progress=self._totals.get(job.name))

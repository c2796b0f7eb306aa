"""Predictors of what a policy may know about unfinished jobs: one class for each source of knowledge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from farandole.control.scheduler.job import Measurement, PolicyJob

PREDICTIONS = ("given", "history", "profiles", "truth")
"""What policies may know: the durations that users gave; in addition the average needs of finished jobs of the same
application; in addition their step times; or the true durations."""


class Given:
    """Uses only the durations that users gave."""

    def finished(self, job: PolicyJob, ran: float) -> None:
        pass

    def predict(self, job: PolicyJob) -> PolicyJob:
        return job


@dataclass
class _Seen:
    """Sums and measurements of the finished jobs of one application."""

    jobs: int = 0
    seconds: float = 0.0
    progress: float = 0.0
    known: Mapping[str, tuple[Measurement, ...]] = field(default_factory=dict)

    def learn(self, measured: Mapping[str, tuple[Measurement, ...]]) -> None:
        """Add the measurements of configurations that are not known yet."""
        known = {type_: {row[:3]: row for row in rows} for type_, rows in self.known.items()}
        for type_, rows in measured.items():
            known[type_] = {row[:3]: row for row in rows} | known.get(type_, {})
        merged = {type_: tuple(sorted(rows.values())) for type_, rows in known.items()}
        if merged != self.known:
            self.known = merged


class History:
    """Predictions from the average needs of finished jobs of the same application.

    Args:
        profiles: whether to pass on their step times as well, so that a policy need not measure them again.
    """

    def __init__(self, profiles: bool = False) -> None:
        self._seen: dict[str, _Seen] = {}
        self._profiles = profiles

    def finished(self, job: PolicyJob, ran: float) -> None:
        seen = self._seen.setdefault(job.application, _Seen())
        seen.jobs += 1
        seen.seconds += ran
        if job.report is not None:
            seen.progress += job.report.progress
            seen.learn(job.report.measured)

    def predict(self, job: PolicyJob) -> PolicyJob:
        seen = self._seen.get(job.application)
        if seen is None or not job.application:
            return job
        return replace(
            job,
            duration=seen.seconds / seen.jobs,
            total_progress=seen.progress / seen.jobs,
            known=seen.known if self._profiles else None,
        )


class Truth:
    """The true durations and progress, to show how much better a policy would be with exact predictions."""

    def __init__(self, durations: Mapping[str, float], totals: Mapping[str, float]) -> None:
        self._durations = durations
        self._totals = totals

    def finished(self, job: PolicyJob, ran: float) -> None:
        pass

    def predict(self, job: PolicyJob) -> PolicyJob:
        return replace(job, duration=self._durations.get(job.name), total_progress=self._totals.get(job.name))

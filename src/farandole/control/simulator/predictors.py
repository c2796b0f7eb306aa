"""Predictors: what a policy may be told of jobs that have not ended. One class for each way to know it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from farandole.control.scheduler.job import Measurement, PolicyJob

PREDICTIONS = ("given", "history", "profiles", "truth")
"""What policies may know: what users gave; also what finished jobs of the same application needed; also how long their
steps took; or the true durations."""


class Given:
    """Nothing but what users gave."""

    def finished(self, job: PolicyJob, ran: float) -> None:
        pass

    def predict(self, job: PolicyJob) -> PolicyJob:
        return job


@dataclass
class _Seen:
    """What the finished jobs of one application have shown, as sums and as measurements."""

    jobs: int = 0
    seconds: float = 0.0
    progress: float = 0.0
    known: Mapping[str, tuple[Measurement, ...]] = field(default_factory=dict)

    def learn(self, measured: Mapping[str, tuple[Measurement, ...]]) -> None:
        """Add measurements; those of a configuration that is known already say nothing new."""
        known = {type_: {row[:3]: row for row in rows} for type_, rows in self.known.items()}
        for type_, rows in measured.items():
            known[type_] = {row[:3]: row for row in rows} | known.get(type_, {})
        merged = {type_: tuple(sorted(rows.values())) for type_, rows in known.items()}
        if merged != self.known:
            self.known = merged


class History:
    """What finished jobs of the same application needed, on average.

    Args:
        profiles: also tell how long their steps took, so that a policy need not find out again.
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
    """The truth: an oracle, to see how much better a policy would be that knew it."""

    def __init__(self, durations: Mapping[str, float], totals: Mapping[str, float]) -> None:
        self._durations = durations
        self._totals = totals

    def finished(self, job: PolicyJob, ran: float) -> None:
        pass

    def predict(self, job: PolicyJob) -> PolicyJob:
        return replace(job, duration=self._durations.get(job.name), total_progress=self._totals.get(job.name))

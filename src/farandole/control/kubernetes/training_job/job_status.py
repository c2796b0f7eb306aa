"""The status of a TrainingJob while an outcome is made, and what of it must survive the operator's process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from farandole.control.jobs.status import JobState
from farandole.control.kubernetes import saved, times
from farandole.control.kubernetes.job_status import JobStatus
from farandole.control.kubernetes.model import Object
from farandole.control.kubernetes.pod_state import Failure

# Seconds before pods that fail are made again: twice as long each time, and at once after a time without failures.
_FIRST_DELAY, _LONGEST_DELAY = 1.0, 60.0
_FORGIVEN_AFTER = 300.0
# Of pods that have failed, the status has so many, the last ones, and so much of what each printed.
MOST_FAILURES = 5
MOST_CHARACTERS = 2048


@dataclass(frozen=True)
class History:
    """What has happened to a job.

    Attributes:
        attempt: which start of the training is the current one, from 0.
        launchers: how many launcher pods were made: the index of the next one.
        workers: the same for worker pods. No name is used twice, so that nobody takes one pod for another.
        failures: of pods, one soon after the other, that make the next pod wait longer: see `placement`.
        failed_at: when the last was counted.
        counted: uids of failed pods that are known of, as long as the pods are there.
        retries: how often the job, having failed, was begun anew.
    """

    attempt: int = 0
    launchers: int = 0
    workers: int = 0
    failures: int = 0
    failed_at: float | None = None
    counted: frozenset[str] = frozenset()
    retries: int = 0

    def retry_at(self) -> float | None:
        """Return when the next worker pod may be made; None is at once."""
        if not self.failures or self.failed_at is None:
            return None
        return self.failed_at + min(_FIRST_DELAY * 2.0 ** min(self.failures - 1, 10), _LONGEST_DELAY)

    def fails(self, now: float) -> bool:
        """Return whether pods have failed one soon after the other, the last one a short time ago."""
        return bool(self.failures) and self.failed_at is not None and now - self.failed_at < _FORGIVEN_AFTER

    def failed(self, lifetimes: Mapping[str, float], now: float) -> History:
        """Return it with pods counted that make the next one wait longer, unless they had run for long.

        Args:
            lifetimes: by uid, how long each has run, in seconds.
        """
        if not lifetimes:
            return self
        # Pods that run for longer than the longest delay are not made often, whatever ends them.
        proven = all(seconds >= _LONGEST_DELAY for seconds in lifetimes.values())
        failures = (self.failures if self.fails(now) and not proven else 0) + len(lifetimes)
        return replace(self, failures=failures, failed_at=now)

    def as_data(self) -> dict[str, Any]:
        """Return it as it is in the status; what is as at the beginning is left out."""
        data: dict[str, Any] = {
            "attempt": self.attempt,
            "launchers": self.launchers,
            "workers": self.workers,
            "failures": self.failures,
            "failedAt": None if self.failed_at is None else times.to_text(self.failed_at),
            "counted": sorted(self.counted),
            "retries": self.retries,
        }
        return {name: value for name, value in data.items() if value}


def read_history(status: Object) -> History:
    """Read it from a status, which may be anybody's."""
    data = saved.history_of(status)
    return History(
        attempt=saved.count(data.get("attempt")),
        launchers=saved.count(data.get("launchers")),
        workers=saved.count(data.get("workers")),
        failures=saved.count(data.get("failures")),
        failed_at=times.from_text(data.get("failedAt")),
        counted=saved.uids(data.get("counted")),
        retries=saved.count(data.get("retries")),
    )


class TrainingJobStatus(JobStatus[History]):
    """A status of a TrainingJob, with the words in which all places tell how a job is."""

    @classmethod
    def of(cls, job: Object) -> TrainingJobStatus:
        """Read a job's status, which may be anything."""
        return cls.reading(job, read_history)

    def with_state(self, state: JobState, reason: str) -> TrainingJobStatus:
        """Return it with a word for how the job is, and a sentence for why."""
        return self.with_fields(state=state.value, reason=reason[:1000])

    def with_failure(self, pod: str, failure: Failure, now: float) -> TrainingJobStatus:
        """Return it with a pod that has failed, and the last lines that it printed: the pod itself goes."""
        told = {"pod": pod, "at": times.to_text(now), "exitCode": failure.exit_code, "what": failure.what}
        if failure.lines:
            told["lines"] = failure.lines[-MOST_CHARACTERS:]
        before = self.fields.get("failures")
        kept = before if isinstance(before, list) else []
        return self.with_fields(failures=[*kept, told][-MOST_FAILURES:])

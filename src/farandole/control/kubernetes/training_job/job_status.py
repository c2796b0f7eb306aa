"""The status of a TrainingJob while an outcome is computed, with the part that must survive the operator's process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from farandole.control.jobs.status import JobState
from farandole.control.kubernetes import saved, times
from farandole.control.kubernetes.job_status import JobStatus
from farandole.control.kubernetes.model import Object
from farandole.control.kubernetes.pod_state import Failure

# Seconds before failed pods are replaced: doubled each time, and 0 again after a time without failures.
_FIRST_DELAY, _LONGEST_DELAY = 1.0, 60.0
_FORGIVEN_AFTER = 300.0
# The number of failed pods in the status, and the characters of each one's last output.
MOST_FAILURES = 5
MOST_CHARACTERS = 2048


@dataclass(frozen=True)
class History:
    """The history of a job.

    Attributes:
        attempt: number of the current start of the training, from 0.
        launchers: number of launcher pods that were created: the index of the next one.
        workers: number of worker pods that were created. No name is used twice, so that pods cannot be confused.
        failures: number of pod failures in quick succession, which delay the next pod: see `placement`.
        failed_at: when the last failure was counted, in seconds since 1970.
        counted: uids of failed pods that were counted, while the pods exist.
        retries: number of times that the failed job was started again.
    """

    attempt: int = 0
    launchers: int = 0
    workers: int = 0
    failures: int = 0
    failed_at: float | None = None
    counted: frozenset[str] = frozenset()
    retries: int = 0

    def retry_at(self) -> float | None:
        """Return when the next worker pod may be created, in seconds since 1970; None for at once."""
        if not self.failures or self.failed_at is None:
            return None
        return self.failed_at + min(_FIRST_DELAY * 2.0 ** min(self.failures - 1, 10), _LONGEST_DELAY)

    def fails(self, now: float) -> bool:
        """Return whether pods have failed in quick succession, most recently a short time ago."""
        return bool(self.failures) and self.failed_at is not None and now - self.failed_at < _FORGIVEN_AFTER

    def failed(self, lifetimes: Mapping[str, float], now: float) -> History:
        """Return the history with failed pods counted; if all of them had run for long, the count starts again.

        Args:
            lifetimes: the seconds for which each has run, by uid.
        """
        if not lifetimes:
            return self
        # Pods that run for longer than the longest delay are not created often, however they end.
        proven = all(seconds >= _LONGEST_DELAY for seconds in lifetimes.values())
        failures = (self.failures if self.fails(now) and not proven else 0) + len(lifetimes)
        return replace(self, failures=failures, failed_at=now)

    def as_data(self) -> dict[str, Any]:
        """Return the history in the form of the status, without initial values."""
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
    """Read the history from a status, which may have any content."""
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
    """The status of a TrainingJob, with the state and the reason that all places show."""

    @classmethod
    def of(cls, job: Object) -> TrainingJobStatus:
        """Read a job's status, which may have any content."""
        return cls.reading(job, read_history)

    def with_state(self, state: JobState, reason: str) -> TrainingJobStatus:
        """Return the status with a state in one word, and a sentence with the reason."""
        return self.with_fields(state=state.value, reason=reason[:1000])

    def with_failure(self, pod: str, failure: Failure, now: float) -> TrainingJobStatus:
        """Return the status with a failed pod and its last lines of output: the pod itself will be deleted."""
        told = {"pod": pod, "at": times.to_text(now), "exitCode": failure.exit_code, "what": failure.what}
        if failure.lines:
            told["lines"] = failure.lines[-MOST_CHARACTERS:]
        before = self.fields.get("failures")
        kept = before if isinstance(before, list) else []
        return self.with_fields(failures=[*kept, told][-MOST_FAILURES:])

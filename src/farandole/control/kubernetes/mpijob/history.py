"""What a job's status remembers beyond what users of mpi-operator read: what has been counted, and when to go on.

It is the field `history` of the status, and all that must survive the operator's process. A field that is missing or
makes no sense is as good as a job's first moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from farandole.control.kubernetes import saved, times
from farandole.control.kubernetes.model import Object

# Seconds before the first, second ... start again; from there on the last.
_FIRST_DELAY, _LONGEST_DELAY = 5.0, 300.0


@dataclass(frozen=True)
class History:
    """What has happened to a job.

    Attributes:
        attempt: which start of the launcher is the current one, from 0.
        failures: how often something ended by its own fault: these count against backoffLimit.
        disruptions: how often the cluster took something away: these do not.
        counted: uids of pods that are in those numbers, as long as the pods are there.
        retry_at: the launcher is not started again before.
        worker_retry_at: the same for workers, by index.
        leaving: since when workers that are to go are no longer in the host list.
        formed: how many workers ran when the job was last whole.
        loss_at: when the launcher that runs has last lost a worker. If it fails soon after, it is because of that, and
            is not counted once more.
    """

    attempt: int = 0
    failures: int = 0
    disruptions: int = 0
    counted: frozenset[str] = frozenset()
    retry_at: float | None = None
    worker_retry_at: Mapping[int, float] = field(default_factory=dict)
    leaving: Mapping[int, float] = field(default_factory=dict)
    formed: int = 0
    loss_at: float | None = None

    def delay(self) -> float:
        """Return how long to wait after a failure before the next start, in seconds: twice as long each time."""
        return float(min(_FIRST_DELAY * 2.0 ** min(self.failures - 1, 10), _LONGEST_DELAY))

    def as_data(self) -> dict[str, Any]:
        """Return it as it is in the status; what is as at the beginning is left out."""
        data: dict[str, Any] = {
            "attempt": self.attempt,
            "failures": self.failures,
            "disruptions": self.disruptions,
            "counted": sorted(self.counted),
            "retryAt": times.to_text(self.retry_at) if self.retry_at is not None else None,
            "workerRetryAt": {str(index): times.to_text(at) for index, at in sorted(self.worker_retry_at.items())},
            "leaving": {str(index): times.to_text(at) for index, at in sorted(self.leaving.items())},
            "formed": self.formed,
            "lossAt": times.to_text(self.loss_at) if self.loss_at is not None else None,
        }
        return {name: value for name, value in data.items() if value}


def read(status: Object) -> History:
    """Read the history from a job's status."""
    data = saved.history_of(status)
    return History(
        attempt=saved.count(data.get("attempt")),
        failures=saved.count(data.get("failures")),
        disruptions=saved.count(data.get("disruptions")),
        counted=saved.uids(data.get("counted")),
        retry_at=times.from_text(data.get("retryAt")),
        worker_retry_at=_moments(data.get("workerRetryAt")),
        leaving=_moments(data.get("leaving")),
        formed=saved.count(data.get("formed")),
        loss_at=times.from_text(data.get("lossAt")),
    )


def _moments(value: object) -> dict[int, float]:
    if not isinstance(value, Mapping):
        return {}
    pairs = ((str(key), times.from_text(text)) for key, text in value.items())
    return {int(key): at for key, at in pairs if key.isascii() and key.isdecimal() and len(key) < 9 and at is not None}

"""The part of a job's status that only the operator reads: counts, and times of the next steps.

It is the field `history` of the status, and everything that must survive the operator's process. A missing or malformed
field counts as that of a new job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from farandole.control.kubernetes import saved, times
from farandole.control.kubernetes.model import Object

# Seconds before the first, second ... restart; the last one for all further restarts.
_FIRST_DELAY, _LONGEST_DELAY = 5.0, 300.0


@dataclass(frozen=True)
class History:
    """The history of a job.

    Attributes:
        attempt: number of the launcher's current start, from 0.
        failures: failures of the job's own pods: these count against backoffLimit.
        disruptions: disruptions by the cluster: these do not count.
        counted: uids of pods that are in these numbers, while the pods exist.
        retry_at: earliest time of the launcher's next start.
        worker_retry_at: the same for workers, by index.
        leaving: when workers that are leaving were removed from the host list.
        formed: number of running workers when the job was last complete.
        loss_at: when the running launcher last lost a worker. If it fails soon after, that is the reason, and the
            failure is not counted again.
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
        """Return the seconds between a failure and the next start: doubled each time."""
        return float(min(_FIRST_DELAY * 2.0 ** min(self.failures - 1, 10), _LONGEST_DELAY))

    def as_data(self) -> dict[str, Any]:
        """Return the history in the form of the status, without initial values."""
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

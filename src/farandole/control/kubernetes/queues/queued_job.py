"""A job that waits or runs in a queue, as `decide` sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from farandole.control.jobs.spec import JobSpec
from farandole.control.kubernetes.accounting import Admitted


@dataclass(frozen=True)
class QueuedJob:
    """A job that names a queue, and is to run.

    Attributes:
        name: in its namespace.
        spec: as its user described it; `kubectl scale` changes its replicas.
        submitted: when it was made.
        account: what it has had.
        step: workers of a pod: it has a multiple of that.
        held: workers whose pods are there, also those that are about to end.
        over: whether it is to have no workers any more, and only holds some.
        places: how many workers its pods have on which node, as far as they are on one.
    """

    name: str
    spec: JobSpec
    submitted: float
    account: Admitted = field(default_factory=Admitted)
    step: int = 1
    held: int = 0
    over: bool = False
    places: Mapping[str, int] = field(default_factory=dict)

    @property
    def queue(self) -> str:
        return self.spec.queue

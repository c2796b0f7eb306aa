"""A job that waits or runs in a queue, as `decide` sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from farandole.control.jobs.spec import JobSpec
from farandole.control.kubernetes.accounting import Admitted


@dataclass(frozen=True)
class QueuedJob:
    """A job that names a queue and is to run.

    Attributes:
        name: name in its namespace.
        spec: the user's description; `kubectl scale` changes its replicas.
        submitted: when it was created, in seconds since 1970.
        account: its account in the queue.
        step: number of workers in a pod: the job gets a multiple of it.
        held: number of workers whose pods exist, including those that are about to end.
        over: whether it may not have workers any more, but still holds some.
        places: number of its workers on each node, for pods that have a node.
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

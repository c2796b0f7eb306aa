"""An MPIJob in one of farandole's queues: it has all its pods, or waits without pods, as if it were suspended.

It is in a queue if its `schedulingPolicy` names an existing Queue: other names are for a gang scheduler, as with
mpi-operator.
"""

from __future__ import annotations

from farandole.control.kubernetes import conditions
from farandole.control.kubernetes.model import Observed, Outcome
from farandole.control.kubernetes.mpijob import suspension
from farandole.control.kubernetes.mpijob.job_spec import MpiJobSpec
from farandole.control.kubernetes.mpijob.job_status import JobStatus

REASON = "Queued"


def admitted(observed: Observed, status: JobStatus) -> JobStatus:
    """Return the status of a job that its queue allows to run."""
    return status if observed.admission is None else status.with_slots(observed, observed.admission.workers)


def waiting(observed: Observed, spec: MpiJobSpec, status: JobStatus) -> Outcome:
    """Return the outcome for a waiting job: without pods, and with the reason in its condition Suspended."""
    assert observed.admission is not None
    told = conditions.find(status.conditions, conditions.SUSPENDED) or {}
    news = (told.get("status"), told.get("reason")) != ("True", REASON)
    return suspension.without_pods(observed, spec, status, (REASON, observed.admission.reason), news)

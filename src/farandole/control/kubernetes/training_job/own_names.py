"""Names of a TrainingJob's objects, from the name of the job."""

from __future__ import annotations

from farandole.control.kubernetes import children
from farandole.control.kubernetes.model import Object

DIAL_PORT = 7707
SECRET_FOLDER = "/etc/farandole"
SECRET_KEY = "secret"
STATUS_KEY, OUTCOME_KEY = "status", "outcome"
CODE_FOLDER = "/farandole/code"
CHECKPOINT_FOLDER = "/farandole/checkpoints"


def job_name(job: Object) -> str:
    """Return the name of the job."""
    return str(job["metadata"]["name"])


def service(job: Object) -> str:
    """Return the name of the Service through which worker pods find the current launcher pod."""
    return children.service_name(f"{job_name(job)}-launcher")


def account(job: Object) -> str:
    """Return the name of the launcher pod's account, Role and RoleBinding."""
    return f"{job_name(job)}-launcher"


def secret(job: Object) -> str:
    """Return the name of the Secret with which worker pods and the launcher pod authenticate each other."""
    return children.secret_name(job, "dial")


def state(job: Object) -> str:
    """Return the name of the ConfigMap in which the launcher reports the state of the job."""
    return f"{job_name(job)}-state"


def failover(job: Object) -> str:
    """Return the name of the ConfigMap with the launcher's sealed failover state."""
    return f"{job_name(job)}-failover"


def pod(job: Object, role: str, index: int) -> str:
    """Return the name of a pod."""
    return f"{job_name(job)}-{role}-{index}"

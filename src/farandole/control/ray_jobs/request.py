"""Converts jobs to requests to Ray, and Ray's reports to job statuses. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from farandole.base.wire.encoding import encode_json
from farandole.control.jobs.errors import Refused
from farandole.control.jobs.quantity import quantity
from farandole.control.jobs.spec import DEFAULT_QUEUE, JobSpec
from farandole.control.jobs.status import JobState, JobStatus

ENTRYPOINT = "python -m farandole.ray.submitted"
SPEC_VARIABLE = "FARANDOLE_SUBMITTED"
"""Environment variable that passes the specification of a job to the entrypoint."""
GPU = "nvidia.com/gpu"
# The mark of our jobs among others, in their metadata: the number of workers.
_MARK = "farandole"
# Seconds that the launcher may take, beyond the grace of the job, to end when it is asked to.
_MARGIN_SECONDS = 10
_STATES = {
    "PENDING": JobState.STARTING,
    "RUNNING": JobState.RUNNING,
    "STOPPED": JobState.CANCELLED,
    "SUCCEEDED": JobState.SUCCEEDED,
}


def request_of(spec: JobSpec) -> dict[str, Any]:
    """Return the body of the request that submits a job, which has a name.

    Raises:
        Refused: Ray cannot give the job what it asks for.
    """
    _check(spec)
    extra = spec.options.get("ray", {})
    variables = {
        SPEC_VARIABLE: encode_json(spec).decode(),
        # Otherwise, Ray kills a job 3 s after it has asked it to end.
        "RAY_JOB_STOP_WAIT_TIME_S": str(int(spec.grace) + _MARGIN_SECONDS),
    }
    runtime = {**extra, "env_vars": {**extra.get("env_vars", {}), **variables}}
    return {
        "entrypoint": ENTRYPOINT,
        "submission_id": spec.name,
        "metadata": {_MARK: str(spec.workers.replicas), "command": json.dumps(spec.command)},
        "runtime_env": runtime,
    }


def resources_of(spec: JobSpec) -> tuple[float, float]:
    """Return the CPUs and the GPUs of each worker.

    Raises:
        Refused: the job asks for a resource other than CPUs and GPUs, or for an invalid amount.
    """
    for name in spec.resources:
        if name not in ("cpu", GPU):
            raise Refused(f"resource {name}: it cannot be requested from Ray here", f"cpu and {GPU}")
    amounts = []
    for name, default in (("cpu", "1"), (GPU, "0")):
        amount = quantity(spec.resources.get(name, default))
        if amount is None or amount < 0:
            raise Refused(f"resource {name}: {spec.resources[name]!r} is not a valid amount", "such as 4")
        amounts.append(float(amount))
    return amounts[0], amounts[1]


def _check(spec: JobSpec) -> None:
    resources_of(spec)
    if not isinstance(spec.options.get("ray", {}), Mapping):
        raise Refused("options.ray: expected keys of a runtime environment of Ray", "such as {pip: [einops]}")
    for key, is_given in (
        ("priority", spec.priority != 0),
        ("queue", spec.queue != DEFAULT_QUEUE),
        ("image", bool(spec.image)),
        ("retries", spec.retries != 0),
        ("suspension", spec.suspension not in ("", "never")),
    ):
        if is_given:
            raise Refused(f"{key}: Ray's jobs do not support it", f"omit {key}")


def status_of(job: Mapping[str, Any]) -> JobStatus | None:
    """Return the status of a job as Ray describes it; None: it is not farandole's."""
    metadata = job.get("metadata") or {}
    if not job.get("submission_id") or not str(metadata.get(_MARK, "")).isdecimal():
        return None
    state = _STATES.get(str(job.get("status")), JobState.FAILED)
    wanted = int(metadata[_MARK])
    return JobStatus(
        str(job["submission_id"]),
        state,
        "ray",
        tuple(json.loads(metadata.get("command", "[]"))),
        workers=wanted if state is JobState.RUNNING else 0,
        wanted=wanted,
        reason=_first_line(job.get("message")) if state is JobState.FAILED else "",
        created=_seconds(job.get("start_time")),
        finished=_seconds(job.get("end_time")),
        exit_code=job.get("driver_exit_code") if state.is_over else None,
    )


def _first_line(text: object) -> str:
    return f"Ray says {str(text).strip().partition(chr(10))[0]}" if text else ""


def _seconds(milliseconds: Any) -> float | None:
    return milliseconds / 1000 if isinstance(milliseconds, (int, float)) and milliseconds else None

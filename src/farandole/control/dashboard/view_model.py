"""The content of a page as plain data, which the browser only displays. Pure."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from farandole.control.dashboard.charts import world_chart
from farandole.control.jobs.status import JobState, JobStatus
from farandole.control.jobs.view import JobView, Moment, OutputLine, WorkerView

MOST_MOMENTS = 100
DENSE_FROM = 48
"""From this number of workers on, each of them is drawn small."""
TONES = {
    JobState.RUNNING: "good",
    JobState.SUCCEEDED: "good",
    JobState.FAILED: "bad",
    JobState.CANCELLED: "quiet",
    JobState.WAITING: "waits",
    JobState.STARTING: "waits",
    JobState.RESTARTING: "bad",
    JobState.SUSPENDED: "waits",
}


def jobs_model(jobs: Sequence[JobStatus], now: float) -> list[dict[str, Any]]:
    """Return the list of jobs, those that are not over first, the newest first."""
    order = sorted(jobs, key=lambda job: (job.state.is_over, -(job.started or job.created or 0.0)))
    return [
        {
            "name": job.name,
            "state": job.state.value,
            "tone": TONES[job.state],
            "workers": workers_text(job),
            "since": since_text(job, now),
            "reason": job.reason,
            "command": " ".join(job.command),
        }
        for job in order
    ]


def job_model(status: JobStatus, view: JobView, now: float) -> dict[str, Any]:
    """Return everything that is shown of one job, except its output."""
    return {
        "name": status.name or view.name,
        "state": status.state.value,
        "tone": TONES[status.state],
        "command": " ".join(status.command),
        "sentence": sentence_of(status, view),
        "facts": facts_of(status, view, now),
        "hosts": hosts_model(view),
        "dense": len(view.workers) >= DENSE_FROM,
        "gone": [{"worker": each.worker, "host": each.host, "end": each.end} for each in view.workers if not each.runs],
        "chart": world_chart(view.moments, now),
        "moments": [moment_model(each) for each in reversed(view.moments[-MOST_MOMENTS:])],
        "stalls": [moment_model(each) for each in reversed(view.moments) if each.kind == "stall"][:10],
    }


def facts_of(status: JobStatus, view: JobView, now: float) -> list[dict[str, str]]:
    """Return the key figures at the top of the page, each with its name."""
    waiting = [each.waiting for each in view.workers if each.waiting is not None]
    facts = [
        ("workers", str(view.size) if view.size == status.wanted else workers_text(status)),
        ("generation", str(view.generation) if view.generation else "-"),
        ("steps per second", rate_text(view.per_second)),
        ("waiting, on average", percent(sum(waiting) / len(waiting)) if waiting else "-"),
        ("losses · joins · stalls", f"{view.losses} · {view.joins} · {view.stalls}"),
        ("running for" if not status.state.is_over else "ran for", age_text(status, now)),
    ]
    return [{"name": name, "value": value} for name, value in facts]


def sentence_of(status: JobStatus, view: JobView) -> str:
    """Return a sentence on the state of the job."""
    if status.state is not JobState.RUNNING:
        return status.reason or status.state.value.lower()
    if view.state:
        return f"The job {view.state}" if not view.state[:1].isupper() else view.state
    if view.slow:
        ranks = ", ".join(str(each.rank) for each in view.workers if each.worker in view.slow and each.rank is not None)
        many = "Ranks" if "," in ranks else "Rank"
        verb = "are" if "," in ranks else "is"
        return f"{many} {ranks} {verb} slow: the others wait {percent(view.slow_waiting)} of the time longer."
    if view.per_second is None:
        return "No step has been counted yet."
    return "All ranks keep pace."


def hosts_model(view: JobView) -> list[dict[str, Any]]:
    """Return the running workers by host; hosts are in the order of their first ranks."""
    hosts: dict[str, list[WorkerView]] = {}
    for worker in view.workers:
        if worker.runs:
            hosts.setdefault(worker.host or "?", []).append(worker)
    fastest = max((each.per_second or 0.0 for each in view.workers), default=0.0)
    return [
        {"name": name, "workers": [worker_model(each, each.worker in view.slow, fastest) for each in there]}
        for name, there in hosts.items()
    ]


def worker_model(worker: WorkerView, slow: bool, fastest: float) -> dict[str, Any]:
    """Return one worker's tile: its texts, the lengths of its bars from 0 to 1, and the text for screen readers."""
    title = f"rank {worker.rank}" if worker.rank is not None else f"worker {worker.worker}"
    state = "slow" if slow else "" if worker.rank is not None else "joining"
    if worker.end and not state:
        state = worker.end
    label = [
        f"{title} on {worker.host}",
        f"{rate_text(worker.per_second)} steps per second" if worker.per_second is not None else "no steps known",
        f"waits {percent(worker.waiting)} of the time" if worker.waiting is not None else "",
        state,
        f"others have waited for it {worker.stalls} times" if worker.stalls else "",
    ]
    return {
        "worker": worker.worker,
        "rank": worker.rank,
        "title": title,
        "rate": rate_text(worker.per_second),
        "speed": round((worker.per_second or 0.0) / fastest, 3) if fastest else 0.0,
        "waiting": round(min(1.0, worker.waiting or 0.0), 3),
        "waiting_text": percent(worker.waiting),
        "steps": worker.steps,
        "slow": slow,
        "state": state,
        "stalls": worker.stalls,
        "stalled_at": worker.stalled_at,
        "label": ", ".join(filter(None, label)),
    }


def moment_model(moment: Moment) -> dict[str, str]:
    """Return one row of the job's history."""
    return {"time": time.strftime("%H:%M:%S", time.localtime(moment.at)), "kind": moment.kind, "text": moment.text}


def line_model(line: OutputLine) -> dict[str, Any]:
    """Return one line of output."""
    return {"n": line.number, "worker": line.worker, "error": line.error, "text": line.text}


def cluster_model(told: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the hosts of a queue and how full they are."""
    if told is None:
        return None
    hosts = [
        {
            "name": host["name"],
            "type": host["type"],
            "used": host["used"],
            "slots": host["slots"],
            "full": round(host["used"] / host["slots"], 3) if host["slots"] else 0.0,
            "state": host["state"],
            "jobs": list(host["jobs"]),
        }
        for host in told["hosts"]
    ]
    counts = ", ".join(f"{number} {phase}" for phase, number in told["jobs"].items())
    return {"hosts": hosts, "policy": told["settings"]["policy"], "counts": counts or "no jobs"}


# --- numbers for people ----------------------------------------------------------------------------------------


def workers_text(job: JobStatus) -> str:
    """Return the number of workers that a job has, and the number that it should have."""
    if job.state.is_over:
        return "-"
    return str(job.workers) if job.workers == job.wanted or not job.wanted else f"{job.workers} of {job.wanted}"


def rate_text(rate: float | None) -> str:
    """Return a rate with about three digits.

    Example:
        >>> rate_text(0.1234), rate_text(12.34), rate_text(1234.5), rate_text(None)
        ('0.12', '12.3', '1234', '-')
    """
    if rate is None:
        return "-"
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.1f}" if rate >= 1 else f"{rate:.2f}"


def percent(part: float | None) -> str:
    """Return a fraction as a percentage."""
    return "-" if part is None else f"{min(1.0, max(0.0, part)):.0%}"


def since_text(job: JobStatus, now: float) -> str:
    """Return a text about how long the job has been in its state."""
    at = job.finished or job.started or job.created
    return "" if at is None else f"{duration_text(now - at)} ago"


def age_text(status: JobStatus, now: float) -> str:
    """Return how long the job has been running, or ran."""
    if status.started is None:
        return "-"
    return duration_text((status.finished or now) - status.started)


def duration_text(seconds: float) -> str:
    """Return a time in its two largest units.

    Example:
        >>> duration_text(5.4), duration_text(75), duration_text(7260), duration_text(180000)
        ('5 s', '1 min 15 s', '2 h 1 min', '2 d 2 h')
    """
    whole = max(0, int(seconds))
    for unit, name, below, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= unit:
            rest = whole % unit // below
            return f"{whole // unit} {name}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"

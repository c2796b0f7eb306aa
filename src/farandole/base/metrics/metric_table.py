"""The table of all metrics, one row each. The endpoint, the documentation and the tests read it.

Names follow Prometheus' conventions: base units (seconds, bytes), `_total` for counters, `_ratio` for fractions. The
constant properties of a worker (its job, its number, its host) are not labels of each series: service discovery adds
them to the target, and `farandole_worker_info` has them too.
"""

from __future__ import annotations

from typing import NamedTuple

COUNTER, GAUGE, HISTOGRAM, INFO = "counter", "gauge", "histogram", "info"


class Metric(NamedTuple):
    """One metric."""

    kind: str
    """`counter`, `gauge`, `histogram` or `info`."""
    meaning: str
    labels: tuple[str, ...] = ()


WORKER_METRICS = {
    "farandole_worker": Metric(INFO, "The worker: its job, its number, its host.", ("job_id", "worker", "host")),
    "farandole_rank": Metric(GAUGE, "Rank of this worker in the current world."),
    "farandole_world_size": Metric(GAUGE, "Workers of the current world."),
    "farandole_generation": Metric(GAUGE, "Number of the current world: 1 for the first, one more for each change."),
    "farandole_collectives": Metric(COUNTER, "Tensors for which a collective is done.", ("operation",)),
    "farandole_buckets": Metric(COUNTER, "Fused transfers in which these tensors travelled.", ("operation",)),
    "farandole_collective_bytes": Metric(COUNTER, "Size of these tensors in bytes.", ("operation",)),
    "farandole_waiting_seconds": Metric(
        COUNTER, "Time from this worker's call until the last rank had called too, summed over tensors.", ("operation",)
    ),
    "farandole_negotiating_seconds": Metric(
        COUNTER, "Time from then until this worker knew, summed over tensors.", ("operation",)
    ),
    "farandole_moving_seconds": Metric(
        COUNTER, "Time of moving and reducing data, summed over buckets.", ("operation",)
    ),
    "farandole_copied_bytes": Metric(
        COUNTER, "Bytes of allreduces copied into memory of the engine (in) and out of it (out).", ("direction",)
    ),
    "farandole_agreement_rounds": Metric(COUNTER, "Agreements reached among the ranks."),
    "farandole_blocked_seconds": Metric(COUNTER, "Time that this program's threads have waited for results."),
    "farandole_waiting_ratio": Metric(
        GAUGE, "Part of the time since the last scrape, or of the last 10 s, that this program waited for results."
    ),
    "farandole_steps": Metric(COUNTER, "Training steps done."),
    "farandole_step_seconds": Metric(HISTOGRAM, "Time from the end of one training step to the end of the next."),
    "farandole_stalls": Metric(COUNTER, "Number of times that others waited for this rank until a warning was due."),
}

JOB_METRICS = {
    "farandole_job": Metric(INFO, "The job: its name and its command.", ("job_name", "command")),
    "farandole_job_workers": Metric(GAUGE, "Processes of workers that run."),
    "farandole_job_world_size": Metric(GAUGE, "Workers of the current world; 0 before the first."),
    "farandole_job_generation": Metric(GAUGE, "Number of the current world; 0 before the first."),
    "farandole_job_losses": Metric(
        COUNTER, "Workers that a world has lost. Those that leave in good order do not count."
    ),
    "farandole_job_joins": Metric(COUNTER, "Workers that have joined a world after the first one."),
    "farandole_job_stalls": Metric(COUNTER, "Number of times that ranks waited for another until a warning was due."),
    "farandole_job_steps_per_second": Metric(GAUGE, "Median over ranks, of the last 10 s."),
    "farandole_job_worker_waiting_ratio": Metric(
        GAUGE, "Part of the last 10 s that this worker waited for others in collectives.", ("worker",)
    ),
}

METRICS = {**WORKER_METRICS, **JOB_METRICS}


def exposed_name(name: str) -> str:
    """Return the name of a metric's series: counters and infos have a suffix."""
    suffix = {COUNTER: "_total", INFO: "_info"}.get(METRICS[name].kind, "")
    return name + suffix

"""Measure the cost of starts, ends and changes of size, with jobs that are like those of the run."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Sequence

from benchmarks.sharing import models
from benchmarks.sharing.prediction import STEP_SECONDS, Costs, Job
from benchmarks.sharing.real_queue import RealQueue


def measure(queue: RealQueue, seconds: float, kind: str, number: int) -> Costs:
    """Return the measured costs.

    Args:
        queue: a queue without jobs.
        seconds: the duration of jobs that end by themselves, about that of the run's jobs.
        kind: `timed` or `training`.
        number: a number that makes the names of jobs unique.
    """
    does = models.MODELS[0] if kind == "training" else kind
    start, elastic_start = _starts(queue, seconds, does, number)
    hand_over, elastic_hand_over = _suspensions(queue, does, number)
    return Costs(start, elastic_start, hand_over, elastic_hand_over, *_resizes(queue, does, number))


def _endless(name: str, does: str, workers: str) -> Job:
    return Job(name, does, workers, 10**5, 0.0)


def _starts(queue: RealQueue, seconds: float, does: str, number: int) -> tuple[float, float]:
    """Return the seconds that a start and an end take beside the work.

    The jobs come and last as those of the run: more that start together would have less of the cores.
    """
    these = [
        Job(f"m{number}-{index}", does, workers, round(seconds / STEP_SECONDS) * int(workers[-1]), index * seconds / 8)
        for index, workers in enumerate(("2", "1", "1:2", "1", "2", "1:2", "1", "1"))
    ]
    told = queue.run("fcfs", these)
    beside = {job: told[job.name]["finished"] - told[job.name]["started"] - job.duration for job in these}
    rigid = statistics.mean(cost for job, cost in beside.items() if not job.elastic)
    return rigid, statistics.mean(cost for job, cost in beside.items() if job.elastic)


def _suspensions(queue: RealQueue, does: str, number: int) -> tuple[float, float]:
    """Return how long a suspended job holds its slots: one of fixed size, and an elastic one."""
    both = [_endless(f"h{number}-{index}", does, workers) for index, workers in enumerate(("2", "1:2"))]
    for job in both:
        queue.submit(job)
    for job in both:
        _until_workers(queue, job, 2)
        queue.ask("suspend", job.name)
    seconds = []
    for job in both:
        queue.until_state(job, "Suspended")
        events = {event["text"].partition(":")[0]: event["at"] for event in queue.status(job.name)["events"]}
        seconds.append(float(events["is suspended"] - events["was suspended"]))
        queue.ask("cancel", job.name)
    return seconds[0], seconds[1]


def _resizes(queue: RealQueue, does: str, number: int) -> tuple[float, float, float]:
    """Return the seconds until an elastic job's slot is free, its worker has left, and a newcomer works."""
    elastic, waits = _endless(f"r{number}-0", does, "1:2"), _endless(f"r{number}-1", does, "5")
    queue.submit(elastic)
    _until_workers(queue, elastic, 2)
    queue.submit(waits)
    shrunk_at = _scale(queue, elastic, 1)
    left_at = _until_workers(queue, elastic, 1)
    free_at = queue.until(lambda: queue.at(waits.name, "starts on "), "the slot is free")
    queue.ask("cancel", waits.name)
    queue.until_state(waits, "Cancelled")
    grown_at = _scale(queue, elastic, 2)
    joined_at = _until_workers(queue, elastic, 2)
    queue.ask("cancel", elastic.name)
    queue.until_state(elastic, "Cancelled")
    return free_at - shrunk_at, left_at - shrunk_at, joined_at - grown_at


def _scale(queue: RealQueue, job: Job, workers: int) -> float:
    """Change the number of a job's workers; return when the queue decided it."""
    before = queue.at(job.name, "has h") or 0.0
    queue.ask("scale", job.name, str(workers))
    return float(queue.until(lambda: at if (at := queue.at(job.name, "has h") or 0.0) > before else 0, "it is scaled"))


def _until_workers(queue: RealQueue, job: Job, workers: int) -> float:
    """Wait until a job works with this many workers; return since when."""

    def since() -> float:
        found: Sequence[tuple[str, str]] = re.findall(r"(\d+\.\d+): (\d+) workers", queue.ask("logs", job.name))
        return float(found[-1][0]) if found and int(found[-1][1]) == workers else 0.0

    at = float(queue.until(since, f"{job.name} has {workers} workers"))
    time.sleep(max(0.0, at + 2 * STEP_SECONDS - time.time()))  # In the middle of its work.
    return at

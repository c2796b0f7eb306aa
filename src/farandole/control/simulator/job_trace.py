"""Jobs to simulate, and reading them from the traces' tables.

workloads/**/*.csv   name, time, application, num_replicas, batch_size [, category, priority, queue, user, deadline]
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from farandole.control.scheduler.errors import TraceError
from farandole.control.simulator.application import Application
from farandole.control.simulator.tables import LATEST, Row, header_of, number, read_texts, rows_of, whole

CATEGORIES = ("adaptive", "scale-gpus", "rigid")
"""Categories of jobs. While a job runs, its slots and its batch size may change, or only its slots, or neither."""

_COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")


@dataclass(frozen=True)
class TraceJob:
    """A job of a trace. It has either an application or a true run time."""

    name: str
    submitted: float
    slots: int
    application: str = ""
    batch: int = 0
    category: str = "adaptive"
    run_time: float | None = None
    """Run time in seconds with the requested slots."""
    requested_time: float | None = None
    """The user's estimate of the run time, in seconds."""
    priority: int = 0
    queue: str = "default"
    user: str = ""
    deadline: float | None = None
    where: str = field(default="", compare=False)
    """The file and the line that it was read from."""


@dataclass(frozen=True)
class Workload:
    """The jobs of one trace, in the order of their submission."""

    name: str
    jobs: tuple[TraceJob, ...]
    notes: tuple[str, ...] = field(default=())
    """Notes about jobs that were omitted while reading, for people."""


def read_workloads(place: Path, applications: Mapping[str, Application]) -> list[Workload]:
    """Return the workloads in a file, a directory or a tar archive: every table whose columns are those of a workload.

    Raises:
        TraceError: a row cannot be read, an application has no profile, or there is no workload.
    """
    texts = read_texts(place)
    workloads = workloads_of(texts, applications, all_=len(texts) == 1)
    if not workloads:
        raise TraceError(f"{place}: there is no workload", f"it is a table with columns {', '.join(_COLUMNS)}")
    return workloads


def workloads_of(
    texts: Mapping[str, str], applications: Mapping[str, Application], all_: bool = False
) -> list[Workload]:
    """Return the workloads among files, given by their paths; `all_`: every file is one.

    Raises:
        TraceError: a row cannot be read, or an application has no profile.
    """
    tables = {name: text for name, text in texts.items() if all_ or _is_workload(text)}
    return [read_workload(name, text, applications) for name, text in tables.items()]


def _is_workload(text: str) -> bool:
    # A table that lacks a column is also one: it must not be ignored silently.
    return len({*header_of(csv.reader(io.StringIO(text)))} & {*_COLUMNS}) >= 3


def read_workload(name: str, text: str, applications: Mapping[str, Application]) -> Workload:
    """Read one workload.

    Raises:
        TraceError: a row cannot be read, or an application has no profile.
    """
    jobs = [(line, _job(name, line, row, applications)) for line, row in rows_of(name, text, _COLUMNS)]
    seen: dict[str, int] = {}
    for line, job in jobs:
        if job.name in seen:
            raise TraceError(f"{name}, line {line}: there is a job {job.name!r} already, in line {seen[job.name]}")
        seen[job.name] = line
    if not jobs:
        raise TraceError(f"{name}: there are no jobs")
    return Workload(Path(name).stem, tuple(sorted((job for _, job in jobs), key=lambda job: (job.submitted, job.name))))


def _job(name: str, line: int, row: Row, applications: Mapping[str, Application]) -> TraceJob:
    application = row["application"]
    if application not in applications:
        known = ", ".join(sorted(applications))
        hint = f"there are: {known}" if known else "no application has one: see --profiles"
        raise TraceError(f"{name}, line {line}: application {application!r} has no profile", hint)
    category = row.get("category") or "adaptive"
    if category not in CATEGORIES:
        raise TraceError(f"{name}, line {line}: category {category!r}", f"there are: {', '.join(CATEGORIES)}")
    batch, limits = whole(name, line, row, "batch_size", 1), applications[application].limits
    if not limits.initial <= batch <= limits.largest:
        raise TraceError(
            f"{name}, line {line}: batch size {batch} was not measured for {application}",
            f"it has {limits.initial} to {limits.largest}",
        )
    if not row["name"]:
        raise TraceError(f"{name}, line {line}: the job has no name")
    return TraceJob(
        name=row["name"],
        submitted=number(name, line, row, "time", 0, LATEST),
        slots=whole(name, line, row, "num_replicas", 1),
        application=application,
        batch=batch,
        category=category,
        priority=whole(name, line, row, "priority", -(10**6)) if row.get("priority") else 0,
        queue=row.get("queue") or "default",
        user=row.get("user") or "",
        deadline=number(name, line, row, "deadline", 0, LATEST) if row.get("deadline") else None,
        where=f"{name}, line {line}",
    )

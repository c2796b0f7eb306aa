"""Reads the Standard Workload Format of the Parallel Workloads Archive.

A line has 18 numbers, of which -1 means that a value is not known; lines that begin with `;` are comments, and some of
them name facts, such as `; MaxProcs: 128`. Feitelson et al., "Experience with using the Parallel Workloads Archive".
"""

from __future__ import annotations

import math
import re
from pathlib import Path

from farandole.control.scheduler.errors import TraceError
from farandole.control.simulator.job_trace import TraceJob, Workload
from farandole.control.simulator.tables import LATEST, UNREADABLE, read_text

_FIELDS = 18
_NUMBER, _SUBMITTED, _RUN_TIME, _PROCESSORS, _WANTED, _REQUESTED_TIME, _USER, _QUEUE = 0, 1, 3, 4, 7, 8, 11, 14
_WHOLE = (_NUMBER, _PROCESSORS, _WANTED, _USER, _QUEUE)


def traces_at(place: Path) -> list[Path]:
    """Return the traces in this format at a path: the file itself, or the files of a directory."""
    files = sorted(place.iterdir()) if place.is_dir() else [place]
    return [file for file in files if file.is_file() and file.name.removesuffix(".gz").endswith(".swf")]


def read_swf(place: Path) -> Workload:
    """Return the jobs of a trace. Jobs that never ran are omitted, and a note has their number.

    Raises:
        TraceError: a line cannot be read, two jobs have the same number, or no job is left.
    """
    try:
        text = read_text(place)
    except UNREADABLE as error:
        raise TraceError(f"{place} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    jobs, skipped = [], 0
    seen: dict[str, int] = {}
    for line, content in enumerate(text.splitlines(), 1):
        if not content.strip() or content.lstrip().startswith(";"):
            continue
        where = f"{place.name}, line {line}"
        job = _job(where, content.split())
        if job is None:
            skipped += 1
            continue
        if job.name in seen:
            raise TraceError(f"{where}: there is a job {int(job.name)} already, in line {seen[job.name]}")
        seen[job.name] = line
        jobs.append(job)
    if not jobs:
        raise TraceError(f"{place}: there are no jobs that ran")
    notes = (f"{place.name}: {skipped} jobs that never ran are left out",) if skipped else ()
    return Workload(
        place.name.partition(".swf")[0], tuple(sorted(jobs, key=lambda job: (job.submitted, job.name))), notes
    )


def processors(place: Path) -> int | None:
    """Return the number of processors from the header comments of a trace."""
    for content in read_text(place).splitlines():
        if content.strip() and not content.startswith(";"):
            return None
        if found := re.match(r";\s*MaxProcs:\s*(\d+)", content):
            return int(found[1])
    return None


def _job(where: str, cells: list[str]) -> TraceJob | None:
    """Return a job, or None if it never ran."""
    if len(cells) != _FIELDS:
        raise TraceError(f"{where}: {len(cells)} numbers, and a job has {_FIELDS}")
    try:
        values = [float(cell) for cell in cells]
    except ValueError as error:
        raise TraceError(f"{where}: {error}") from None
    if strange := [value for value in values if not math.isfinite(value)]:
        raise TraceError(f"{where}: {strange[0]} is not a number")
    if large := [value for value in values if abs(value) > LATEST]:
        raise TraceError(f"{where}: {large[0]:g} is too large: numbers are at most {LATEST:g}")
    if parts := [values[at] for at in _WHOLE if values[at] != int(values[at])]:
        raise TraceError(f"{where}: {parts[0]:g} is not a whole number")
    slots = int(values[_PROCESSORS] if values[_PROCESSORS] > 0 else values[_WANTED])
    if values[_RUN_TIME] <= 0 or slots <= 0:
        return None
    requested = values[_REQUESTED_TIME]
    return TraceJob(
        name=f"{int(values[_NUMBER]):07}",
        submitted=max(values[_SUBMITTED], 0.0),
        slots=slots,
        category="rigid",
        run_time=values[_RUN_TIME],
        requested_time=requested if requested > 0 else None,
        queue=f"queue-{int(values[_QUEUE])}",
        user=f"user-{int(values[_USER])}",
        where=where,
    )

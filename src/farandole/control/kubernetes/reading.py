"""Reads the status of a job, in the form that all places share, from its TrainingJob. Pure functions.

A status may have any content: parts that cannot be read are omitted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from farandole.control.jobs.status import Event, JobState, JobStatus, RankStatus
from farandole.control.kubernetes import times
from farandole.control.kubernetes.model import Object

_MOST_EVENTS = 10
_NOT_SEEN = "no operator has seen it yet: farandole kubernetes install"
PLACE = "kubernetes"


def status_of(job: Object, events: Iterable[Object] = ()) -> JobStatus:
    """Return the status of a job."""
    metadata, spec, status = job["metadata"], _map(job.get("spec")), _map(job.get("status"))
    progress = _map(status.get("progress"))
    ranks = tuple(_rank(each) for each in _list(progress.get("ranks")) if isinstance(each, Mapping))
    return JobStatus(
        name=str(metadata["name"]),
        state=_state(status),
        place=PLACE,
        command=tuple(str(word) for word in _list(spec.get("command"))),
        queue=str(spec.get("queue") or ""),
        priority=_number(spec.get("priority")) or 0,
        workers=_number(progress.get("size")) or 0 if status.get("workers") else 0,
        wanted=_number(_map(spec.get("workers")).get("replicas")) or 0,
        reason=str(status.get("reason") or ("" if status else _NOT_SEEN)),
        created=times.from_text(metadata.get("creationTimestamp")),
        started=times.from_text(status.get("startTime")),
        finished=times.from_text(status.get("completionTime")),
        hosts=tuple(dict.fromkeys(rank.place for rank in ranks)),
        ranks=ranks,
        steps_per_second=_rate(progress.get("stepsPerSecond")),
        restarts=_number(_map(status.get("history")).get("attempt")) or 0,
        exit_code=_number(status.get("exitCode")),
        events=_last(events),
    )


def lines_of_failures(job: Object) -> list[tuple[str, list[str]]]:
    """Return the names of failed pods, and the last lines of output of each, as lines for the job's log."""
    found = []
    for told in _list(_map(job.get("status")).get("failures")):
        if isinstance(told, Mapping) and (lines := str(told.get("lines") or "")):
            pod = str(told.get("pod"))
            first = f"farandole: {pod} failed ({told.get('what')}); its last lines:\n"
            found.append((pod, [first, *(f"[{pod}] {line}\n" for line in lines.splitlines())]))
    return found


def _state(status: Mapping[str, Any]) -> JobState:
    try:
        return JobState(status.get("state", JobState.WAITING.value))
    except ValueError:
        return JobState.WAITING


def _rank(told: Mapping[str, Any]) -> RankStatus:
    return RankStatus(_number(told.get("worker")) or 0, str(told.get("pod", "")), str(told.get("state", "")))


def _last(events: Iterable[Object]) -> tuple[Event, ...]:
    found = []
    for event in events:
        at = times.from_text(event.get("lastTimestamp") or event.get("eventTime")) or times.from_text(
            event["metadata"].get("creationTimestamp")
        )
        found.append(Event(at or 0.0, f"{event.get('reason')}: {event.get('message')}"))
    return tuple(sorted(found, key=lambda event: event.at)[-_MOST_EVENTS:])


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _rate(value: object) -> float | None:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if usable else None  # type: ignore[arg-type]


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}

"""The size of a job's world over time, as points to draw. Pure."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from farandole.control.jobs.view import Moment

MARKED = ("loss", "join", "stall", "finish")
MOST_MARKS = 200
SHORTEST_SECONDS = 30.0
"""Minimum length of the time axis, in seconds."""
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400, 172800, 604800)
MOST_TICKS = 6


def world_chart(moments: Sequence[Moment], now: float) -> dict[str, Any] | None:
    """Return a chart with coordinates from 0 to 1, left to right and bottom to top; None if there is nothing to draw.

    Returns:
        points: the points of the line, [x, y] each; it goes right, then up or down.
        marks: x, y, kind and text of each loss, join, stall and end.
        ticks: x and text of the times below; largest: the size at the top.
        label: one sentence that describes the chart.
    """
    worlds = [each for each in moments if each.kind == "world"]
    if not worlds:
        return None
    begin = worlds[0].at
    length = max(now - begin, SHORTEST_SECONDS)
    largest = max(each.size for each in worlds)

    def x(at: float) -> float:
        return round(min(1.0, max(0.0, (at - begin) / length)), 4)

    def y(size: int) -> float:
        return round(size / largest, 4) if largest else 0.0

    points: list[list[float]] = []
    for world in worlds:
        if points:
            points.append([x(world.at), points[-1][1]])
        points.append([x(world.at), y(world.size)])
    points.append([x(now), points[-1][1]])
    marked = [each for each in moments if each.kind in MARKED and each.at >= begin][-MOST_MARKS:]
    return {
        "points": points,
        "marks": [{"x": x(each.at), "y": y(each.size), "kind": each.kind, "text": each.text} for each in marked],
        "ticks": [{"x": x(at), "text": clock_text(at, length)} for at in tick_times(begin, begin + length)],
        "largest": largest,
        "label": label_of(worlds, marked),
    }


def tick_times(begin: float, end: float) -> list[float]:
    """Return round times between two moments, at most `MOST_TICKS`."""
    step = next((each for each in _STEPS if (end - begin) / each <= MOST_TICKS), _STEPS[-1])
    offset = time.localtime(begin).tm_gmtoff
    first = -(-(begin + offset) // step) * step - offset
    times: list[float] = []
    while first <= end and len(times) < MOST_TICKS:
        times.append(first)
        first += step
    return times


def clock_text(at: float, length: float) -> str:
    """Return the time of day, as precise as a chart of this length needs it."""
    form = "%H:%M:%S" if length < 600 else "%H:%M" if length < 86400 else "%d %b %H:%M"
    return time.strftime(form, time.localtime(at))


def label_of(worlds: Sequence[Moment], marked: Sequence[Moment]) -> str:
    """Return one sentence that describes the chart.

    Example:
        >>> label_of([Moment(0, "world", "", 3), Moment(9, "world", "", 2)], [Moment(9, "loss", "", 2)])
        'Workers over time: 3 at first, 2 now, between 2 and 3; 1 loss, 0 joins, 0 stalls'
    """
    sizes = [each.size for each in worlds]
    counts = {kind: sum(each.kind == kind for each in marked) for kind in ("loss", "join", "stall")}
    plural = {"loss": "losses", "join": "joins", "stall": "stalls"}
    told = ", ".join(f"{number} {kind if number == 1 else plural[kind]}" for kind, number in counts.items())
    now = f"{sizes[0]} at first, {sizes[-1]} now, between {min(sizes)} and {max(sizes)}"
    return f"Workers over time: {now}; {told}"

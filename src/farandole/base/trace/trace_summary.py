"""The summary of a timeline: stragglers, overlap of communication and computation, and the longest waits.

Pure functions, from the records of a trace in either format to a `Summary`. Terms:

- A *call* is one collective of one tensor, on all ranks that took part.
- Its *wait* is the time from the first rank's call to the last one's. The others wait for the last rank.
- A rank's *step* ends when a tensor occurs for the second time. While a rank still makes calls, it computes, as
  gradients become ready one by one; data that is moved meanwhile is *hidden*. The time after the last call of a step is
  its *tail*, in which only communication is left. So the overlap is an estimate: computation after the last call, or in
  a step with a single call, is not visible.

Events may be missing, for example those before the recording began: a call counts on the ranks with all its events.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from farandole.base.trace.perfetto import is_perfetto, read_records

MOST_WAITS = 10
_NEGOTIATE = "NEGOTIATE_"


class Part(NamedTuple):
    """One rank's part of a call, in microseconds of the trace."""

    rank: int
    begin: float
    """Time of its call."""
    agreed: float
    """Time when it learned that all ranks had called."""
    end: float


class Wait(NamedTuple):
    """One call, and the time that others waited for its last rank."""

    name: str
    at: float
    """Time of the first rank's call, in seconds of the trace."""
    seconds: float
    """Time that the first rank waited."""
    rank: int
    """The last rank."""


@dataclass
class RankSummary:
    """The totals of one rank, in seconds."""

    rank: int
    calls: int = 0
    last_in: int = 0
    """Number of calls in which it was the last, and others waited."""
    waited_for: float = 0.0
    """Time that others waited for it, summed over calls and ranks."""
    waiting: float = 0.0
    """Time that it waited for the last rank, summed over calls."""
    moving: float = 0.0
    """Time in which its data was moved."""
    hidden: float = 0.0
    """Part of `moving` in which it still made calls."""
    steps: int = 0
    tail: float = 0.0
    """Time after the last call of each step until its last result, summed over steps."""

    @property
    def overlap(self) -> float | None:
        """The fraction of `moving` that was hidden; None: nothing was moved."""
        return self.hidden / self.moving if self.moving else None

    @property
    def tail_of_step(self) -> float | None:
        """Average of the tail of a step, in seconds."""
        return self.tail / self.steps if self.steps else None


@dataclass
class Summary:
    """The totals of all ranks."""

    seconds: float = 0.0
    calls: int = 0
    bytes: int = 0
    lost_events: int = 0
    ranks: list[RankSummary] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    """The longest ones, the longest first."""

    @property
    def straggler(self) -> RankSummary | None:
        """The rank for which others waited longest; None: no rank waited, or all were waited for equally."""
        by_time = sorted(self.ranks, key=lambda rank: rank.waited_for, reverse=True)
        if len(by_time) < 2 or not by_time[0].waited_for:
            return None
        others = statistics.fmean(rank.waited_for for rank in by_time[1:])
        return by_time[0] if by_time[0].waited_for > 2 * others else None


def read_trace(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the complete records of a timeline in either format; the file may be truncated.

    Raises:
        OSError: it cannot be read.
        ValueError: the file is not a timeline.
    """
    data = path.read_bytes()
    if is_perfetto(path):
        yield from read_records(data)
        return
    if not data.lstrip().startswith(b"["):
        raise ValueError("this is not a timeline: it does not begin with [")
    for line in data.decode(errors="replace").splitlines():
        text = line.strip().rstrip(",")
        if text in ("", "[", "]"):
            continue
        try:
            record = json.loads(text)
        except ValueError:
            continue  # Its writer was killed in the middle of it.
        if isinstance(record, dict) and "ph" in record:
            yield record


def summarize(records: Iterable[dict[str, Any]]) -> Summary:
    """Return the summary of a trace's records."""
    reader = _Reader()
    for record in records:
        reader.take(record)
    summary = Summary(reader.latest / 1e6, bytes=reader.bytes, lost_events=reader.lost)
    ranks: dict[int, RankSummary] = {}
    of_tensor: dict[int, list[Part]] = {}
    of_rank: dict[int, list[tuple[int, Part]]] = {}
    for (pid, rank), parts in sorted(reader.parts.items(), key=lambda item: item[0][1]):
        ranks.setdefault(rank, RankSummary(rank)).calls += len(parts)
        of_tensor.setdefault(pid, []).extend(parts)
        of_rank.setdefault(rank, []).extend((pid, part) for part in parts)
    waits = []
    for pid, name in reader.names.items():
        for call in calls_of(of_tensor.get(pid, ())):
            summary.calls += 1
            waits.append(_count(call, name, ranks))
    for rank, row in ranks.items():
        _count_overlap(row, of_rank[rank])
    summary.ranks = list(ranks.values())
    summary.waits = sorted((wait for wait in waits if wait.seconds > 0), key=lambda wait: -wait.seconds)[:MOST_WAITS]
    return summary


def calls_of(parts: Sequence[Part]) -> list[list[Part]]:
    """Return the parts of one tensor's calls, call by call.

    A rank has one part of a call, and no rank begins its part after another one has learned that all have begun.
    """
    calls: list[list[Part]] = []
    for part in sorted(parts, key=lambda each: each.agreed):
        call = calls[-1] if calls else []
        fits = call and all(part.rank != each.rank for each in call) and part.begin <= max(p.agreed for p in call)
        if fits:
            call.append(part)
        else:
            calls.append([part])
    return calls


def _count(call: Sequence[Part], name: str, ranks: dict[int, RankSummary]) -> Wait:
    last = max(call, key=lambda part: part.begin)
    first = min(part.begin for part in call)
    for part in call:
        waited = (last.begin - part.begin) / 1e6
        ranks[part.rank].waiting += waited
        ranks[last.rank].waited_for += waited
    ranks[last.rank].last_in += last.begin > first
    return Wait(name, first / 1e6, (last.begin - first) / 1e6, last.rank)


def _count_overlap(row: RankSummary, parts: Sequence[tuple[int, Part]]) -> None:
    for step in steps_of(parts):
        last_call = max(part.begin for part in step)
        moved = union((part.agreed, part.end) for part in step)
        row.steps += 1
        row.moving += sum(end - begin for begin, end in moved) / 1e6
        row.hidden += sum(max(0.0, min(end, last_call) - begin) for begin, end in moved) / 1e6
        row.tail += (max(part.end for part in step) - last_call) / 1e6


def steps_of(parts: Sequence[tuple[int, Part]]) -> list[list[Part]]:
    """Return the parts of one rank, grouped by step; each is given with its tensor."""
    steps: list[list[Part]] = []
    seen: set[int] = set()
    for pid, part in sorted(parts, key=lambda each: each[1].begin):
        if not steps or pid in seen:
            steps.append([])
            seen.clear()
        seen.add(pid)
        steps[-1].append(part)
    return steps


def union(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the union of some time spans as disjoint spans."""
    merged: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((begin, end))
    return merged


class _Reader:
    """Collects the parts of calls from records in their order."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.parts: dict[tuple[int, int], list[Part]] = {}
        self.bytes = self.lost = 0
        self.latest = 0.0
        self._open: dict[tuple[int, int], list[tuple[str, float]]] = {}
        self._negotiated: dict[tuple[int, int], tuple[float, float]] = {}
        """By tensor and rank: times of the call and of the agreement, for calls in progress."""

    def take(self, record: dict[str, Any]) -> None:
        """Add the next record of the file."""
        kind = record["ph"]
        if kind == "M":
            if record["name"] == "process_name" and record["pid"]:
                self.names[record["pid"]] = str(record["args"]["name"])
            return
        self.latest = max(self.latest, float(record["ts"]))
        place = record["pid"], record["tid"]
        if kind == "B":
            self._open.setdefault(place, []).append((record["name"], record["ts"]))
        elif kind == "E" and self._open.get(place):
            self._end(place, record["ts"], record.get("args", {}))
        elif record.get("name") == "EVENTS_LOST":
            self.lost += int(record.get("args", {}).get("count", 0))

    def _end(self, place: tuple[int, int], at: float, args: dict[str, Any]) -> None:
        name, begin = self._open[place].pop()
        if self._open[place]:
            return  # A part of a longer span.
        if name.startswith(_NEGOTIATE):
            self._negotiated[place] = begin, at
            return
        called = self._negotiated.pop(place, None)
        broken = args.keys() & {"events_lost", "unfinished", "failed"}
        if called is not None and not broken:
            self.parts.setdefault(place, []).append(Part(place[1], called[0], called[1], at))
            self.bytes += int(args.get("bytes", 0)) if place[1] == 0 else 0

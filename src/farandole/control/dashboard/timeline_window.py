"""The last seconds of a job's timeline: when each rank waited or moved data. Pure, except for reading a file.

The file is that of `--timeline`, in Chrome's format: one record per line (`worker.observe.trace`). Only its end is
read, so a span may have begun before the part that is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from farandole.base.wire.encoding import decode_json

READ_BYTES = 1 << 20
WINDOW_SECONDS = 5.0
MOST_LANES = 32
MOST_SPANS = 250
"""Maximum number of spans of a lane; if there are more, spans that lie close together are merged."""


class _Record(msgspec.Struct):
    """A record of the timeline, which any program may have written. The fields are those of Chrome's format."""

    ph: str
    pid: int
    tid: int
    ts: float
    name: str = ""


class Span(NamedTuple):
    """A period in which a rank waited for others, or moved data."""

    begin: float
    end: float
    waits: bool


def read_end(path: str) -> list[str]:
    """Return the last whole lines of a file.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        file.seek(0, os.SEEK_END)
        start = max(0, file.tell() - READ_BYTES)
        file.seek(start)
        lines = file.read(READ_BYTES).decode(errors="replace").splitlines()
    return lines[1:] if start else lines


def spans_of(lines: Iterable[str]) -> dict[int, list[Span]]:
    """Return the spans of each rank, in microseconds of the trace, from lines with one record each."""
    spans: dict[int, list[Span]] = {}
    open_spans: dict[tuple[int, int], list[_Record]] = {}
    for line in lines:
        try:
            record = decode_json(line.rstrip().rstrip(","), _Record)
        except msgspec.DecodeError:
            continue  # A bracket, the line at which the window begins, or a record of another kind.
        track = record.pid, record.tid
        if record.ph == "B":
            open_spans.setdefault(track, []).append(record)
        elif record.ph == "E" and (begun := open_spans.get(track)):
            first = begun.pop()
            if not begun and first.ts <= record.ts:  # Only the outermost: what is in it is a part of it.
                span = Span(first.ts, record.ts, first.name.startswith("NEGOTIATE_"))
                spans.setdefault(record.tid, []).append(span)
    return spans


def window_model(spans: Mapping[int, Sequence[Span]], seconds: float = WINDOW_SECONDS) -> dict[str, Any] | None:
    """Return the last seconds as one lane per rank, with times scaled to 0 to 1; None: there are no spans."""
    latest = max((span.end for there in spans.values() for span in there), default=None)
    if latest is None:
        return None
    length = seconds * 1e6
    begin = latest - length
    lanes = []
    for rank in sorted(spans)[:MOST_LANES]:
        seen = [span._replace(begin=max(span.begin, begin)) for span in spans[rank] if span.end > begin]
        lanes.append(
            {
                "rank": rank,
                "spans": [
                    [*(round((at - begin) / length, 4) for at in (each.begin, each.end)), int(each.waits)]
                    for each in _merged(seen, length / MOST_SPANS / 2)
                ],
                "waiting": _share(seen, True, seconds),
                "moving": _share(seen, False, seconds),
            }
        )
    return {"seconds": seconds, "lanes": lanes, "left_out": max(0, len(spans) - MOST_LANES)}


def _merged(spans: Sequence[Span], gap: float) -> list[Span]:
    """Return spans of one kind that lie closer together than `gap` as one."""
    merged: list[Span] = []
    last: dict[bool, int] = {}
    for span in sorted(spans):
        at = last.get(span.waits)
        if at is not None and span.begin - merged[at].end <= gap:
            merged[at] = merged[at]._replace(end=max(merged[at].end, span.end))
        else:
            last[span.waits] = len(merged)
            merged.append(span)
    return merged


def _share(spans: Sequence[Span], waits: bool, seconds: float) -> str:
    covered = sum(span.end - span.begin for span in _merged([each for each in spans if each.waits is waits], 0.0))
    return f"{min(1.0, covered / (seconds * 1e6)):.0%}"

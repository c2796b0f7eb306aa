"""A picture of a timeline, from the file that `farandole run --timeline FILE` has written in a real run."""

from __future__ import annotations

import html
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COLORS = {"NEGOTIATE": "#e0b080", "moved": "#5b8fb9"}
WIDTH, LEFT, ROW, TOP = 1000, 210, 15, 46


@dataclass(frozen=True)
class Span:
    """One rank's operation on one tensor, in microseconds since the beginning of the recording."""

    tensor: str
    rank: int
    waits: bool
    begin: float
    end: float


def spans(file: Path) -> list[Span]:
    """Read the outermost spans of each tensor on each rank: until all ranks were ready, and until it was done."""
    content: Any = json.loads(file.read_text())
    events = content["traceEvents"] if isinstance(content, dict) else content
    names = {event["pid"]: event["args"]["name"] for event in events if event.get("name") == "process_name"}
    found, open_spans = [], defaultdict(list)
    for event in events:
        stack = open_spans[event.get("pid"), event.get("tid")]
        if event.get("ph") == "B":
            stack.append(event)
        elif event.get("ph") == "E" and stack:
            began = stack.pop()
            if not stack:
                waits = began["name"].startswith("NEGOTIATE")
                found.append(Span(names.get(event["pid"], ""), event["tid"], waits, began["ts"], event["ts"]))
    return found


def one_step(found: list[Span]) -> tuple[float, float]:
    """Return the beginning and the end of a step in the middle of the recording, by the waits for its first tensor."""
    tensor = min(found, key=lambda span: span.begin).tensor
    begins = sorted(span.begin for span in found if span.tensor == tensor and span.rank == 0 and span.waits)
    middle = len(begins) // 2
    return begins[middle] - 0.1 * (begins[middle + 1] - begins[middle]), begins[middle + 1]


def picture(file: Path, prefix: str) -> str:
    """Return an SVG picture of one step of all ranks, for tensors whose name has a prefix."""
    found = [span for span in spans(file) if span.tensor.startswith(prefix)]
    begin, end = one_step(found)
    found = [span for span in found if span.end > begin and span.begin < end]
    ranks = sorted({span.rank for span in found})
    tensors = list(dict.fromkeys(span.tensor for span in sorted(found, key=lambda span: span.begin)))
    rows = {(tensor, rank): i for i, (tensor, rank) in enumerate((t, r) for t in tensors for r in ranks)}
    height = TOP + ROW * len(rows) + 34
    scale = (WIDTH - LEFT - 20) / (end - begin)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="11"><rect width="{WIDTH}" height="{height}" fill="white"/>',
        _legend(),
    ]
    for (tensor, rank), row in rows.items():
        y = TOP + ROW * row
        label = f"{tensor} · rank {rank}" if rank == ranks[0] else f"rank {rank}"
        parts.append(f'<text x="{LEFT - 8}" y="{y + 11}" text-anchor="end" fill="#333">{html.escape(label)}</text>')
        if rank == ranks[0]:
            parts.append(f'<line x1="10" x2="{WIDTH - 10}" y1="{y}" y2="{y}" stroke="#ddd"/>')
    for span in found:
        left = LEFT + scale * (max(span.begin, begin) - begin)
        width = max(1.0, scale * (min(span.end, end) - max(span.begin, begin)))
        color = COLORS["NEGOTIATE" if span.waits else "moved"]
        y = TOP + ROW * rows[span.tensor, span.rank] + 2
        parts.append(f'<rect x="{left:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 4}" fill="{color}"/>')
    parts.append(_scale(end - begin, height))
    return "\n".join([*parts, "</svg>\n"])


def _legend() -> str:
    entries = (("NEGOTIATE", "called here, not yet called on every rank"), ("moved", "the data is moved and summed"))
    return "".join(
        f'<rect x="{LEFT + 300 * i}" y="14" width="14" height="12" fill="{COLORS[key]}"/>'
        f'<text x="{LEFT + 20 + 300 * i}" y="24" fill="#333">{text}</text>'
        for i, (key, text) in enumerate(entries)
    )


def _scale(microseconds: float, height: int) -> str:
    text = f"one step of this run: {microseconds / 1000:.1f} ms from the left edge to the right"
    return f'<text x="{LEFT}" y="{height - 10}" fill="#333">{text}</text>'

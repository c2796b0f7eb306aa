"""Diagrams of the documentation: lanes of workers over time, drawn as SVG from the tables below.

They show order, not measured times. `python -m tools.pictures.diagrams` writes them; a test compares the files.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"
WIDTH, LEFT, LANE, TOP = 900, 110, 44, 40
COLORS = {
    "compute": "#cfe0ee",
    "communicate": "#5b8fb9",
    "wait": "#f3e3c8",
    "state": "#9cc5a1",
    "lost": "#d98c7a",
    "idle": "#eeeeee",
}


@dataclass(frozen=True)
class Lanes:
    """One picture: for each lane its name and its spans (kind, from and to in percent of the width, text)."""

    title: str
    lanes: tuple[tuple[str, tuple[tuple[str, int, int, str], ...]], ...]


PICTURES = {
    "step": Lanes(
        "One step: gradients travel in buckets while the backward pass still runs",
        (
            (
                "script",
                (
                    ("compute", 0, 22, "forward"),
                    ("compute", 22, 70, "backward: layer 3, 2, 1"),
                    ("wait", 70, 84, "step() waits"),
                    ("compute", 84, 100, "update"),
                ),
            ),
            (
                "engine",
                (
                    ("communicate", 40, 54, "bucket 1"),
                    ("communicate", 56, 70, "bucket 2"),
                    ("communicate", 72, 84, "bucket 3"),
                ),
            ),
        ),
    ),
    "loss": Lanes(
        "A worker dies: the others finish the step among themselves",
        (
            (
                "rank 0",
                (
                    ("compute", 0, 40, "gradients"),
                    ("wait", 40, 52, "next world"),
                    ("communicate", 52, 66, "sum of 2"),
                    ("compute", 66, 100, "next step"),
                ),
            ),
            (
                "rank 1",
                (
                    ("compute", 0, 40, "gradients"),
                    ("wait", 40, 52, "next world"),
                    ("communicate", 52, 66, "sum of 2"),
                    ("compute", 66, 100, "next step"),
                ),
            ),
            ("rank 2", (("compute", 0, 36, "gradients"), ("lost", 36, 42, "dies"))),
            ("samples", (("idle", 42, 66, "of rank 2: given back"), ("idle", 66, 100, "come first in the next step"))),
        ),
    ),
    "join": Lanes(
        "A newcomer gets the state while the others train, and joins at the end of a step",
        (
            (
                "rank 0",
                (
                    ("compute", 0, 30, "step"),
                    ("compute", 31, 60, "step"),
                    ("wait", 60, 68, "changes"),
                    ("compute", 68, 100, "step in the new world"),
                ),
            ),
            (
                "rank 1",
                (
                    ("compute", 0, 30, "step"),
                    ("compute", 31, 60, "step"),
                    ("wait", 60, 68, "changes"),
                    ("compute", 68, 100, "step in the new world"),
                ),
            ),
            (
                "newcomer",
                (
                    ("idle", 0, 22, "starts, imports"),
                    ("state", 22, 60, "state from the others"),
                    ("wait", 60, 68, "changes"),
                    ("compute", 68, 100, "step as rank 2"),
                ),
            ),
        ),
    ),
    "two-level": Lanes(
        "Two-level allreduce: on each host through shared memory, between hosts only the parts",
        (
            (
                "host 1",
                (
                    ("communicate", 0, 30, "reduce-scatter, shared memory"),
                    ("communicate", 34, 66, "allreduce of each part"),
                    ("communicate", 70, 100, "allgather, shared memory"),
                ),
            ),
            ("network", (("wait", 34, 66, "each worker with its peer"),)),
            (
                "host 2",
                (
                    ("communicate", 0, 30, "reduce-scatter, shared memory"),
                    ("communicate", 34, 66, "allreduce of each part"),
                    ("communicate", 70, 100, "allgather, shared memory"),
                ),
            ),
        ),
    ),
}


def draw(picture: Lanes) -> str:
    """Return a picture as SVG."""
    height = TOP + LANE * len(picture.lanes) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="13" role="img" aria-label="{html.escape(picture.title)}">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="12" y="24" font-weight="bold" fill="#222">{html.escape(picture.title)}</text>',
    ]
    for i, (name, spans) in enumerate(picture.lanes):
        parts += _lane(name, spans, TOP + LANE * i)
    parts.append(f'<text x="{WIDTH - 12}" y="{height - 10}" text-anchor="end" fill="#555">time →</text>')
    return "\n".join([*parts, "</svg>\n"])


def _lane(name: str, spans: tuple[tuple[str, int, int, str], ...], y: int) -> list[str]:
    parts = [f'<text x="{LEFT - 10}" y="{y + 26}" text-anchor="end" fill="#222">{html.escape(name)}</text>']
    scale = (WIDTH - LEFT - 12) / 100
    for kind, begin, end, text in spans:
        x, width = LEFT + scale * begin, scale * (end - begin)
        ink = "white" if kind == "communicate" else "#222"
        parts += [
            f'<rect x="{x:.0f}" y="{y + 6}" width="{width:.0f}" height="{LANE - 12}" rx="3" fill="{COLORS[kind]}"/>',
            f'<text x="{x + width / 2:.0f}" y="{y + 26}" text-anchor="middle" fill="{ink}">{html.escape(text)}</text>',
        ]
    return parts


def main() -> None:
    """Write all diagrams."""
    for name, picture in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw(picture))


if __name__ == "__main__":
    main()

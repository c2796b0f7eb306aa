"""Plots of time over bytes, both logarithmic, with one line for each contender, and a grey one for the bound."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.cases.base import ARENA, COPY_BOUND, GLOO, MPICH, OPENMPI, ORDINARY, WIRE_BOUND, Case
from benchmarks.conductor import Row
from benchmarks.report import format_bytes, format_seconds, labels_of

# Lines differ by colour (Okabe and Ito's palette, which colour-blind people can read), by marker and by dashes.
_STYLES = {
    COPY_BOUND: {"color": "#888888", "marker": "", "linestyle": "--"},
    WIRE_BOUND: {"color": "#888888", "marker": "", "linestyle": "--"},
    ARENA: {"color": "#D55E00", "marker": "o", "linewidth": 2.2},
    ORDINARY: {"color": "#E69F00", "marker": "^"},
    GLOO: {"color": "#0072B2", "marker": "s"},
    OPENMPI: {"color": "#009E73", "marker": "D"},
    MPICH: {"color": "#CC79A7", "marker": "v"},
}
_PANEL_WIDTH, _PANEL_HEIGHT, _DPI = 6.4, 4.6, 80
_COLORS = 64


def draw(case: Case, rows: Sequence[Row], folder: Path) -> list[Path]:
    """Draw a case's figures into a folder and return the files; none for a case that has no figure, or no numbers."""
    if case.figure is None or not any(row.seconds for row in rows):
        return []
    key = case.figure.file_key
    if key is None:
        return [_draw_file(case, rows, folder / f"{case.letter}.png", "")]
    return [
        _draw_file(case, list(group), folder / f"{case.letter}-{value}.png", f", {key} of {value}")
        for value, group in groupby(rows, lambda row: row.keys[key])
    ]


def _draw_file(case: Case, rows: Sequence[Row], path: Path, suffix: str) -> Path:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from PIL import Image

    assert case.figure is not None
    panels = [(name, list(group)) for name, group in groupby(rows, lambda row: _panel(case, row))]
    columns = 1 if len(panels) == 1 else _columns(case, rows)
    lines = -(-len(panels) // columns)
    size = (_PANEL_WIDTH * columns, _PANEL_HEIGHT * lines + 0.9)
    figure, grid = pyplot.subplots(lines, columns, figsize=size, squeeze=False, layout="constrained")
    for axes, (name, group) in zip(grid.flat, panels, strict=False):
        _draw_panel(axes, name, group)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    handles = {label: line for axes in grid.flat for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3 * columns, fontsize=11)
    figure.suptitle(f"{case.title}{suffix}", fontsize=13, wrap=True)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=_DPI)
    pyplot.close(figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    # A palette of seven colours makes a third of the bytes, and the files are kept in the repository.
    Image.open(drawn).convert("RGB").quantize(_COLORS).save(path, optimize=True)
    return path


def _panel(case: Case, row: Row) -> str:
    assert case.figure is not None
    values = [(key, row.keys[key]) for key in case.figure.panel_keys]
    # A word needs no name beside it; a number does.
    return ", ".join(value if isinstance(value, str) else f"{key} of {value}" for key, value in values)


def _columns(case: Case, rows: Sequence[Row]) -> int:
    """Return one column for each value of the last key, so that lines are the others."""
    assert case.figure is not None
    return len({row.keys[case.figure.panel_keys[-1]] for row in rows})


def _draw_panel(axes: Any, name: str, rows: Sequence[Row]) -> None:
    for label in labels_of(rows):
        points = [(row.keys["bytes"], row.median(label)) for row in rows if row.median(label) is not None]
        if points:
            axes.plot(*zip(*points, strict=True), label=label, markersize=5, **_STYLES.get(label, {}))
    axes.set_xscale("log", base=4)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: format_bytes(round(value)))
    axes.yaxis.set_major_formatter(lambda value, _: re.sub(r"\.0+ ", " ", format_seconds(value)))
    axes.tick_params(labelsize=10)
    axes.tick_params(axis="x", rotation=40)
    axes.set_ylabel("time of one call", fontsize=11)
    axes.grid(True, which="major", color="#dddddd")
    if name:
        axes.set_title(name, fontsize=12)

"""Charts of simulations: bars and distributions as SVG, a page around them as HTML, or PNG through matplotlib."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from farandole.control.scheduler.errors import SchedulerError
from farandole.control.simulator.metrics import JobResult, Summary
from farandole.control.simulator.policy_table import COLUMNS

Results = Sequence[tuple[Summary, Sequence[JobResult]]]

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 560, 300, 110, 34, 34
_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#777777", "#000000")
_FORMATS = (".html", ".svg", ".png")

BARS: Sequence[tuple[str, Callable[[Summary], float]]] = (
    ("average completion time, hours", lambda row: row.average / 3600),
    ("average waiting time, hours", lambda row: row.waiting / 3600),
    ("99th percentile of completion, hours", lambda row: row.p99 / 3600),
    ("finish-time fairness (1: an equal share)", lambda row: row.fairness),
)


def check(place: Path) -> None:
    """Check that charts can be written to a file, in the format of its name's suffix.

    Raises:
        SchedulerError: they cannot.
    """
    if place.suffix not in _FORMATS:
        raise SchedulerError(f"--plot {place}: charts are {', '.join(_FORMATS)}", "name the file page.html")
    if not place.parent.is_dir():
        raise SchedulerError(f"--plot {place}: there is no directory {place.parent}", "make it first")
    if place.suffix == ".png":
        try:
            import matplotlib  # noqa: F401
        except ModuleNotFoundError:
            raise SchedulerError("charts as PNG need matplotlib", "pip install matplotlib, or plot .svg") from None


def write(place: Path, results: Results) -> None:
    """Write charts of the results of policies on the same jobs."""
    if place.suffix == ".png":
        _write_png(place, results)
    elif place.suffix == ".svg":
        place.write_text(svg(results))
    else:
        place.write_text(page(results))


def svg(results: Results) -> str:
    """Return all charts as one picture."""
    charts = _charts(results)
    rows = math.ceil(len(charts) / 2)
    placed = [
        f'<g transform="translate({(index % 2) * _WIDTH},{(index // 2) * _HEIGHT})">{chart}</g>'
        for index, chart in enumerate(charts)
    ]
    size = f'width="{2 * _WIDTH}" height="{rows * _HEIGHT}" viewBox="0 0 {2 * _WIDTH} {rows * _HEIGHT}"'
    font = 'font-family="sans-serif" font-size="12"'
    background = '<rect width="100%" height="100%" fill="white"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>{background}{"".join(placed)}</svg>\n'


def page(results: Results) -> str:
    """Return a page with the table and all charts."""
    head = "".join(f"<th>{html.escape(title)}</th>" for title, _ in COLUMNS)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(text(summary))}</td>" for _, text in COLUMNS) + "</tr>"
        for summary, _ in results
    )
    style = "body{font-family:sans-serif;margin:2em}td,th{padding:.2em .8em;text-align:right}"
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Scheduling policies</title>'
        f"<style>{style}</style></head><body><h1>Scheduling policies</h1>"
        f"<table><tr>{head}</tr>{body}</table>{svg(results)}</body></html>\n"
    )


def _charts(results: Results) -> list[str]:
    names = [summary.policy for summary, _ in results]
    bars = [_bars(title, names, [value(summary) for summary, _ in results]) for title, value in BARS]
    completion = [(summary.policy, sorted(job.completion / 3600 for job in jobs)) for summary, jobs in results]
    fairness = [(summary.policy, sorted(job.fairness for job in jobs)) for summary, jobs in results]
    return [
        *bars,
        _distribution("completion time in hours: cumulative fraction of jobs", completion),
        _distribution("finish-time fairness: part of the jobs within a ratio", fairness),
    ]


def _bars(title: str, names: Sequence[str], values: Sequence[float]) -> str:
    """Return a chart with a horizontal bar for each policy."""
    most = max(values) or 1.0
    room = _WIDTH - _LEFT - 70
    each = min(34.0, (_HEIGHT - _TOP - 10) / len(names))
    parts = [_text(_WIDTH / 2, 20, title, "middle")]
    for index, (name, value) in enumerate(zip(names, values, strict=True)):
        y, width = _TOP + index * each, room * value / most
        colour = _COLOURS[index % len(_COLOURS)]
        parts.append(f'<rect x="{_LEFT}" y="{y:.1f}" width="{width:.1f}" height="{each * 0.75:.1f}" fill="{colour}"/>')
        parts.append(_text(_LEFT - 6, y + each * 0.55, name, "end"))
        parts.append(_text(_LEFT + width + 5, y + each * 0.55, f"{value:.2f}", "start"))
    return "".join(parts)


def _distribution(title: str, series: Sequence[tuple[str, Sequence[float]]]) -> str:
    """Return a chart of cumulative distributions over a logarithmic axis."""
    positive = [value for _, values in series for value in values if value > 0]
    low, high = math.log10(min(positive, default=0.1)), math.log10(max(positive, default=1.0))
    high = max(high, low + 1e-6)
    left, right, bottom = 50, _WIDTH - 120, _HEIGHT - _BOTTOM

    def x(value: float) -> float:
        return left + (right - left) * (math.log10(max(value, 10**low)) - low) / (high - low)

    parts = [_text(_WIDTH / 2, 20, title, "middle")]
    for exponent in range(math.ceil(low), math.floor(high) + 1):
        at = x(10**exponent)
        parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{bottom}" stroke="#ddd"/>')
        parts.append(_text(at, bottom + 16, f"{10**exponent:g}", "middle"))
    for part in (0.0, 0.5, 1.0):
        y = bottom - (bottom - _TOP) * part
        parts.append(f'<line x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(_text(left - 6, y + 4, f"{part:.0%}", "end"))
    for index, (name, values) in enumerate(series):
        colour = _COLOURS[index % len(_COLOURS)]
        points = [
            f"{x(value):.1f},{bottom - (bottom - _TOP) * (rank + 1) / len(values):.1f}"
            for rank, value in enumerate(values)
            if rank % max(1, len(values) // 200) == 0 or rank == len(values) - 1
        ]
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.6" points="{" ".join(points)}"/>')
        parts.append(f'<rect x="{right + 12}" y="{_TOP + index * 18}" width="10" height="10" fill="{colour}"/>')
        parts.append(_text(right + 28, _TOP + index * 18 + 9, name, "start"))
    return "".join(parts)


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _write_png(place: Path, results: Results) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(3, 2, figsize=(11, 10), constrained_layout=True)
    names = [summary.policy for summary, _ in results]
    for axis, (title, value) in zip(axes.flat, BARS, strict=False):
        axis.barh(names[::-1], [value(summary) for summary, _ in results][::-1])
        axis.set_title(title)
    for axis, title, key in (
        (axes[2, 0], "completion time, hours", lambda job: job.completion / 3600),
        (axes[2, 1], "finish-time fairness", lambda job: job.fairness),
    ):
        for summary, jobs in results:
            values = sorted(map(key, jobs))
            axis.step(values, [(rank + 1) / len(values) for rank in range(len(values))], label=summary.policy)
        axis.set_xscale("log")
        axis.set_title(title)
        axis.legend(fontsize=8)
    figure.savefig(place, dpi=110)
    pyplot.close(figure)

"""The text of a report and its verdict, for people."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from farandole.base.display.wording import bytes_text, count
from farandole.base.self_test.report import SelfTestReport
from farandole.base.self_test.verdict import Finding, gigabytes

MOST_COLUMNS = 16
"""Largest number of nodes of which all links are shown; with more, only the slow ones."""


def render(report: SelfTestReport, findings: Sequence[Finding]) -> str:
    """Return the whole report as text; the last line is the verdict."""
    parts = ["\n".join(_head(report))]
    if report.pairs and len(report.nodes) <= MOST_COLUMNS:
        parts += [_bandwidths(report, findings), _latencies(report, findings)]
    elif report.pairs:
        parts.append("\n".join(_ranges(report)))
    parts += [f"problem: {finding.text}\nhint: {finding.hint}" for finding in findings]
    parts.append(_last(findings))
    return "\n\n".join(parts) + "\n"


def _last(findings: Sequence[Finding]) -> str:
    if not findings:
        return "all good"
    return f"{count(len(findings), 'problem')} found"


def _head(report: SelfTestReport) -> list[str]:
    wrong = len({problem.check for problem in report.problems})
    whole = report.whole
    lines = [
        f"{count(report.workers, 'worker')} on {count(report.hosts, 'host')} ({report.links})",
        "",
        f"collectives   {report.checks} checks, {f'{wrong} wrong' if wrong else 'all right'}",
    ]
    if report.pairs:
        lines.append(
            f"allreduce     {whole.latency_us:.0f} us for 4 B, {whole.seconds * 1e3:.3g} ms for "
            f"{bytes_text(whole.size)} ({gigabytes(whole.size / whole.seconds)} GB/s)"
        )
        alone = (
            "each while the others were silent" if report.at_once == 1 else f"up to {report.at_once} at the same time"
        )
        ends = "the first workers of two hosts" if report.hosts > 1 else "two workers"
        lines.append(f"links         {count(len(report.pairs), 'pair')} of {ends}, {alone}")
    return lines


def _bandwidths(report: SelfTestReport, findings: Sequence[Finding]) -> str:
    rates = {(pair.one, pair.other): pair.there for pair in report.pairs}
    rates |= {(pair.other, pair.one): pair.back for pair in report.pairs}
    marked = {way for finding in findings for way in finding.slow}
    cells = {way: gigabytes(rate) + ("*" if way in marked else " ") for way, rate in rates.items()}
    return _matrix("GB/s, from the row to the column", report, lambda row, column: cells.get((row, column), "- "))


def _latencies(report: SelfTestReport, findings: Sequence[Finding]) -> str:
    marked = {way for finding in findings for way in finding.far}
    cells = {}
    for pair in report.pairs:
        cells[pair.one, pair.other] = f"{pair.latency_us:.0f}" + ("*" if (pair.one, pair.other) in marked else " ")

    def cell(row: int, column: int) -> str:
        return cells.get((min(row, column), max(row, column)), "- ")

    return _matrix("us that 4 bytes take, one way", report, cell)


def _matrix(title: str, report: SelfTestReport, cell: Callable[[int, int], str]) -> str:
    names = [node.name for node in report.nodes]
    places = range(len(names))
    # A cell ends with its mark, or a space for it; so does the name above it.
    table = [["", *(f"{name} " for name in names)]]
    table += [[names[row], *(cell(row, column) for column in places)] for row in places]
    widths = [max(len(line[column]) for line in table) for column in range(len(names) + 1)]
    lines = [title]
    for first, *others in table:
        numbers = (f"{text:>{width}}" for text, width in zip(others, widths[1:], strict=True))
        lines.append("  ".join([f"{first:<{widths[0]}}", *numbers]).rstrip())
    return "\n".join(lines)


def _ranges(report: SelfTestReport) -> list[str]:
    rates = [rate for pair in report.pairs for rate in (pair.there, pair.back)]
    times = [pair.latency_us for pair in report.pairs]
    lowest, middle, highest = (gigabytes(rate) for rate in (min(rates), statistics.median(rates), max(rates)))
    return [
        f"GB/s          {lowest} to {highest}, half of them above {middle}",
        f"us            {min(times):.0f} to {max(times):.0f} for 4 bytes one way, half of them above "
        f"{statistics.median(times):.0f}",
    ]

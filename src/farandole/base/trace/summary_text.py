"""A summary of a timeline for people: as lines of text, and as one self-contained HTML page."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from farandole.base.trace.trace_summary import RankSummary, Summary

_STYLE = """\
:root{color-scheme:light dark;--g:#f7f8f8;--p:#fff;--l:#d9dedd;--t:#16201f;--q:#55625f;--a:#0f766e;--w:#b8752a}
@media(prefers-color-scheme:dark){:root{--g:#101615;--p:#182120;--l:#2d3a38;--t:#e6eceb;--q:#9fb0ac;--a:#3fb3a4;--w:#c98f4b}}
body{font:16px/1.5 system-ui,sans-serif;background:var(--g);color:var(--t)}
body{max-width:60rem;margin:2rem auto;padding:0 1rem}
section{background:var(--p);border:1px solid var(--l);border-radius:10px;padding:1rem;margin:1rem 0;overflow-x:auto}
h1{font-size:1.4rem}h2{font-size:1.05rem;margin:0 0 .5rem}p.q,th{color:var(--q)}
table{border-collapse:collapse;width:100%}th{text-align:left;font-weight:400;font-size:.85rem}
td,th{padding:.2rem .7rem .2rem 0;border-top:1px solid var(--l);font-variant-numeric:tabular-nums}
svg{width:9rem;height:.7rem;display:block}.b{fill:var(--l)}.w{fill:var(--w)}.a{fill:var(--a)}
"""


def duration(seconds: float) -> str:
    """Return a time as text in a suitable unit.

    Example:
        >>> duration(0.0000123), duration(0.0123), duration(12.3)
        ('12 us', '12.3 ms', '12.3 s')
    """
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def size(count: float) -> str:
    """Return a number of bytes as text in a suitable unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def headline(summary: Summary) -> str:
    """Return the totals as one sentence."""
    ranks, steps = len(summary.ranks), max((rank.steps for rank in summary.ranks), default=0)
    told = [f"{ranks} ranks", f"{summary.calls} collectives in {steps} steps", size(summary.bytes)]
    if summary.lost_events:
        told.append(f"{summary.lost_events} events are missing")
    return f"{duration(summary.seconds)}: {', '.join(told)}"


def overlap_sentence(summary: Summary) -> str:
    """Return a sentence about the communication that is hidden behind computation."""
    moving = sum(rank.moving for rank in summary.ranks)
    steps = sum(rank.steps for rank in summary.ranks)
    if not moving or not steps:
        return "Nothing was moved."
    hidden = sum(rank.hidden for rank in summary.ranks) / moving
    tail = sum(rank.tail for rank in summary.ranks) / steps
    return (
        f"{hidden:.0%} of the time in which data moves, further gradients are still to come; "
        f"{duration(tail)} of each step are left after the last one."
    )


def straggler_sentence(summary: Summary) -> str:
    """Return a sentence about the rank that the others wait for."""
    slow = summary.straggler
    if slow is None:
        return "No rank is much slower than the others."
    return (
        f"Rank {slow.rank} is the one that the others wait for: it was last in {slow.last_in} of {slow.calls} "
        f"collectives, and they waited {duration(slow.waited_for)} for it, summed over ranks."
    )


def _cells(rank: RankSummary) -> tuple[str, ...]:
    return (
        str(rank.rank),
        f"{rank.last_in} of {rank.calls}",
        duration(rank.waited_for),
        duration(rank.waiting),
        duration(rank.moving),
        "-" if rank.overlap is None else f"{rank.overlap:.0%}",
        "-" if rank.tail_of_step is None else duration(rank.tail_of_step),
    )


RANK_HEAD = ("rank", "last in", "others waited", "it waited", "moving", "overlap", "tail of a step")
WAIT_HEAD = ("at", "wait", "for rank", "tensor")


def _waits(summary: Summary) -> list[tuple[str, ...]]:
    return [(duration(each.at), duration(each.seconds), str(each.rank), each.name) for each in summary.waits]


def text_of(summary: Summary) -> list[str]:
    """Return the summary as lines."""
    lines = [headline(summary), "", overlap_sentence(summary), straggler_sentence(summary), ""]
    lines += _table([RANK_HEAD, *map(_cells, summary.ranks)])
    if summary.waits:
        lines += ["", "longest waits:", *_table([WAIT_HEAD, *_waits(summary)])]
    return lines


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def as_plain(summary: Summary) -> dict[str, Any]:
    """Return the summary as plain data, for `--json`. Times are seconds."""
    slow = summary.straggler
    return {
        "seconds": summary.seconds,
        "collectives": summary.calls,
        "bytes": summary.bytes,
        "lost_events": summary.lost_events,
        "straggler": None if slow is None else slow.rank,
        "ranks": [{**vars(rank), "overlap": rank.overlap, "tail_of_step": rank.tail_of_step} for rank in summary.ranks],
        "longest_waits": [wait._asdict() for wait in summary.waits],
    }


def html_of(summary: Summary, title: str) -> str:
    """Return the summary as one HTML page without scripts, which loads nothing else."""
    most_waited = max((rank.waited_for for rank in summary.ranks), default=0.0)
    longest = max((wait.seconds for wait in summary.waits), default=0.0)
    ranks = [
        [*_cells(rank), _bar(rank.waited_for, most_waited, "w"), _bar(rank.overlap or 0.0, 1.0, "a")]
        for rank in summary.ranks
    ]
    waits = [
        [*cells, _bar(wait.seconds, longest, "w")] for cells, wait in zip(_waits(summary), summary.waits, strict=True)
    ]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style><h1>{html.escape(title)}</h1>"
        f'<p class="q">{html.escape(headline(summary))}</p>'
        f"<section><h2>Overlap</h2><p>{html.escape(overlap_sentence(summary))}</p></section>"
        f"<section><h2>Stragglers</h2><p>{html.escape(straggler_sentence(summary))}</p>"
        f"{_rows((*RANK_HEAD, 'others waited', 'overlap'), ranks)}</section>"
        f"<section><h2>Longest waits</h2>{_rows((*WAIT_HEAD, ''), waits)}</section></html>\n"
    )


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    titles = "".join(f"<th>{html.escape(title)}</th>" for title in head)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{titles}</tr>{body}</table>"


def _cell(text: str) -> str:
    return text if text.startswith("<svg ") else html.escape(text)


def _bar(value: float, of: float, kind: str) -> str:
    part = 100 * value / of if of else 0.0
    return (
        f'<svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="b" width="100" height="8"/>'
        f'<rect class="{kind}" width="{part:.1f}" height="8"/></svg>'
    )

"""The table of policies, for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from farandole.base.display.tables import lines
from farandole.control.simulator.metrics import Summary

COLUMNS: Sequence[tuple[str, Callable[[Summary], str]]] = (
    ("policy", lambda row: row.policy),
    ("avg JCT h", lambda row: f"{row.average / 3600:.3f}"),
    ("median h", lambda row: f"{row.median / 3600:.3f}"),
    ("p99 h", lambda row: f"{row.p99 / 3600:.2f}"),
    ("wait h", lambda row: f"{row.waiting / 3600:.3f}"),
    ("p99 wait h", lambda row: f"{row.waiting_p99 / 3600:.2f}"),
    ("makespan h", lambda row: f"{row.makespan / 3600:.1f}"),
    ("used", lambda row: f"{row.utilisation:.0%}"),
    ("slot h/job", lambda row: f"{row.slot_hours:.2f}"),
    ("fairness", lambda row: f"{row.fairness:.2f}"),
    ("worst", lambda row: f"{row.fairness_worst:.2f}"),
    ("restarts/job", lambda row: f"{row.restarts:.2f}"),
)
"""The columns of the table: JCT is the time from submission to completion, fairness the finish-time ratio."""


def render(summaries: Sequence[Summary]) -> list[str]:
    """Return the lines of the table."""
    rows = [[title for title, _ in COLUMNS], *([text(row) for _, text in COLUMNS] for row in summaries)]
    return lines(rows, right=range(1, len(COLUMNS)))

"""The documentation has every metric, in the words of the table."""

from __future__ import annotations

from pathlib import Path

from farandole.base.metrics.metric_table import METRICS, exposed_name

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_every_metric_is_in_the_documentation() -> None:
    text = "".join(page.read_text() for page in DOCS.rglob("*.md"))
    missing = [name for name, row in METRICS.items() if f"| `{exposed_name(name)}` | {row.kind} |" not in text]
    missing += [name for name, row in METRICS.items() if row.meaning not in text]
    assert missing == []

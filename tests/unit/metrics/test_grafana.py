"""The dashboard for Grafana asks for metrics and labels that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from farandole.base.metrics.metric_table import HISTOGRAM, METRICS, exposed_name

DASHBOARD = json.loads((Path(__file__).resolve().parents[3] / "deploy/grafana/farandole.json").read_text())
# Service discovery adds them to each series: see docs/how-to/metrics.md.
TARGET_LABELS = {"farandole_job", "farandole_worker", "farandole_host"}
SERIES = {exposed_name(name): {*row.labels, *TARGET_LABELS} for name, row in METRICS.items()}
SERIES |= {f"{name}_bucket": {"le", *TARGET_LABELS} for name, row in METRICS.items() if row.kind == HISTOGRAM}


def wrong(expression: str) -> list[str]:
    """Return the metrics and labels of a query that there are not, and counters that are shown without a rate."""
    bare = re.sub(r'"[^"]*"', "", expression)
    labels = {label for group in re.findall(r"by \(([^)]*)\)", bare) for label in re.split(r",\s*", group)}
    labels |= {label for group in re.findall(r"\{([^}]*)\}", bare) for label in re.findall(r"(\w+)=", group)}
    named = set(re.findall(r"farandole_\w+", re.sub(r"\{[^}]*\}|by \([^)]*\)", "", bare)))
    known = {label for name in named & SERIES.keys() for label in SERIES[name]}
    return sorted((named - SERIES.keys()) | (labels - known)) if named else [expression]


def panels() -> list[Any]:
    return [pytest.param(panel, id=panel["title"]) for panel in DASHBOARD["panels"]]


@pytest.mark.parametrize("panel", panels())
def test_queries_of_a_panel_name_metrics_and_labels_that_exist(panel: dict[str, Any]) -> None:
    assert panel["targets"]
    for target in panel["targets"]:
        assert wrong(target["expr"]) == []
        labels = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        assert labels <= {label for name in SERIES if name in target["expr"] for label in SERIES[name]}


def test_job_is_chosen_by_a_label_that_exists() -> None:
    (query,) = [each["query"] for each in DASHBOARD["templating"]["list"] if each["name"] == "job"]
    metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", query).groups()  # type: ignore[union-attr]
    assert label in SERIES[metric]


def test_wrong_names_are_found() -> None:
    assert wrong('rate(farandole_step_total{rank="1"}[1m])') == ["farandole_step_total", "rank"]
    assert wrong("sum by (host) (farandole_world_size)") == ["host"]
    assert wrong("up") == ["up"]


def test_panels_do_not_overlap() -> None:
    places = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(places) == len(set(places)) and max(x for x, _ in places) < 24

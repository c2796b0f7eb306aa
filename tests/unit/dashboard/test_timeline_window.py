"""The last seconds of a timeline, from the end of its file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from farandole.control.dashboard import timeline_window
from farandole.control.dashboard.feed import timeline_model
from farandole.control.dashboard.timeline_window import Span, read_end, spans_of, window_model
from farandole.control.jobs.view import JobView


def records(rank: int, begin: float, agreed: float, end: float) -> list[dict[str, object]]:
    place = {"pid": 1, "tid": rank}
    return [
        {"name": "NEGOTIATE_ALLREDUCE", "ph": "B", **place, "ts": begin},
        {"name": "1", "ph": "X", "dur": 0, **place, "ts": begin},
        {"ph": "E", **place, "ts": agreed},
        {"name": "ALLREDUCE", "ph": "B", **place, "ts": agreed},
        {"name": "RING_ALLREDUCE", "ph": "B", **place, "ts": agreed},
        {"ph": "E", **place, "ts": end},
        {"ph": "E", **place, "ts": end},
    ]


def lines(*groups: list[dict[str, object]]) -> list[str]:
    return ["[", *(json.dumps(record) + "," for group in groups for record in group), "]"]


def test_spans_are_split_into_waiting_and_moving() -> None:
    spans = spans_of(lines(records(0, 100.0, 300.0, 400.0), records(1, 290.0, 300.0, 400.0)))
    assert spans == {
        0: [Span(100.0, 300.0, True), Span(300.0, 400.0, False)],
        1: [Span(290.0, 300.0, True), Span(300.0, 400.0, False)],
    }


def test_spans_from_before_the_window_are_omitted_or_cut() -> None:
    second = 1e6
    begun_before = [{"ph": "E", "pid": 1, "tid": 0, "ts": 1.0}, {"bad": 1}]
    spans = spans_of(["half a line", *lines(begun_before, records(0, 4 * second, 6 * second, 10 * second))])
    model = window_model(spans, 5.0)
    assert model is not None
    (lane,) = model["lanes"]
    assert lane["spans"] == [[0.0, 0.2, 1], [0.2, 1.0, 0]]
    assert (lane["waiting"], lane["moving"]) == ("20%", "80%")
    assert window_model({}) is None


def test_many_spans_are_merged() -> None:
    spans = {0: [Span(at, at + 5.0, False) for at in range(0, 5_000_000, 100)]}
    model = window_model(spans, 5.0)
    assert model is not None
    assert len(model["lanes"][0]["spans"]) <= timeline_window.MOST_SPANS
    assert model["lanes"][0]["moving"] == "5%", "what is drawn as one is not counted as one"


def test_only_the_end_of_a_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline_window, "READ_BYTES", 12)
    path = tmp_path / "timeline.json"
    path.write_text("first line\nsecond line\nthird\n")
    assert read_end(str(path)) == ["third"]


def test_without_a_timeline_the_page_says_how_to_get_one(tmp_path: Path) -> None:
    assert "--timeline FILE" in timeline_model(JobView())["note"]
    missing = tmp_path / "timeline.json"
    assert "cannot be read here" in timeline_model(JobView(timeline=str(missing), generation=1))["note"]
    (tmp_path / "timeline.2.json").write_text("\n".join(lines(records(0, 1.0, 2.0, 3.0))))
    assert timeline_model(JobView(timeline=str(missing), generation=2))["lanes"][0]["rank"] == 0
    assert "ui.perfetto.dev" in timeline_model(JobView(timeline="a.pftrace"))["note"]

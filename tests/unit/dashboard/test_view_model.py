"""The data of a page: every sentence, number and tile is decided here and not in the browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from played_dashboard import STALL, PlayedSource

from farandole.control.dashboard import view_model
from farandole.control.dashboard.charts import MOST_TICKS, tick_times, world_chart
from farandole.control.dashboard.sources import line_of_log, view_of_status
from farandole.control.jobs.status import Event, JobState, JobStatus, RankStatus
from farandole.control.jobs.view import JobView, Moment, WorkerView

STATIC = Path(view_model.__file__).parent / "static"


def test_slow_rank_is_named_and_marked() -> None:
    status, view = PlayedSource().view("otter", 0)
    model = view_model.job_model(status, view, status.started + 100)
    assert model["sentence"] == "Rank 3 is slow: the others wait 29% of the time longer."
    tiles = {tile["title"]: tile for host in model["hosts"] for tile in host["workers"]}
    assert [name for name, tile in tiles.items() if tile["slow"]] == ["rank 3"]
    assert tiles["rank 3"]["label"] == (
        "rank 3 on h2, 12.1 steps per second, waits 2% of the time, slow, others have waited for it 1 times"
    )
    assert tiles["rank 0"]["worker"] == 4 and tiles["rank 0"]["waiting"] == 0.31
    assert model["gone"] == [{"worker": 0, "host": "h1", "end": "was killed by SIGKILL"}]
    assert [host["name"] for host in model["hosts"]] == ["h1", "h2"]
    facts = {fact["name"]: fact["value"] for fact in model["facts"]}
    assert facts["workers"] == "4" and facts["losses · joins · stalls"] == "1 · 1 · 1"
    assert facts["running for"] == "1 min 40 s"
    assert model["stalls"][0]["text"].endswith(STALL)
    assert [row["kind"] for row in model["moments"]] == ["stall", "world", "join", "world", "loss", "world"]


def test_256_ranks_are_drawn_small() -> None:
    status, view = PlayedSource(256).view("otter", 0)
    model = view_model.job_model(status, view, 0.0)
    assert model["dense"] and len(model["hosts"]) == 8
    assert sum(len(host["workers"]) for host in model["hosts"]) == 256
    assert not view_model.job_model(*PlayedSource(8).view("otter", 0), 0.0)["dense"]


@pytest.mark.parametrize(
    ("view", "sentence"),
    [
        (JobView(state="waits for worker 3 on h1 to join"), "The job waits for worker 3 on h1 to join"),
        (JobView(), "No step has been counted yet."),
        (JobView(per_second=3.0), "All ranks keep pace."),
        (
            JobView(workers=(WorkerView(7, 0), WorkerView(8, 1), WorkerView(9, 2)), slow=(7, 9), slow_waiting=0.5),
            "Ranks 0, 2 are slow: the others wait 50% of the time longer.",
        ),
    ],
)
def test_state_of_job_is_one_sentence(view: JobView, sentence: str) -> None:
    assert view_model.sentence_of(JobStatus("otter", JobState.RUNNING), view) == sentence


def test_ended_job_shows_reason() -> None:
    status = JobStatus("otter", JobState.FAILED, reason="rank 1 raised ValueError", started=10.0, finished=85.0)
    model = view_model.job_model(status, JobView(), 1000.0)
    assert (model["sentence"], model["tone"]) == ("rank 1 raised ValueError", "bad")
    assert {"name": "ran for", "value": "1 min 15 s"} in model["facts"]


def test_running_jobs_come_first() -> None:
    jobs = [
        JobStatus("old", JobState.SUCCEEDED, started=300.0, finished=400.0),
        JobStatus("first", JobState.RUNNING, started=100.0, workers=2, wanted=4),
        JobStatus("second", JobState.WAITING, created=200.0, reason="4 slots are missing"),
    ]
    models = view_model.jobs_model(jobs, 500.0)
    assert [model["name"] for model in models] == ["second", "first", "old"]
    assert [model["workers"] for model in models] == ["0", "2 of 4", "-"]
    assert models[2]["since"] == "1 min 40 s ago"


def test_the_cluster_of_a_queue() -> None:
    model = view_model.cluster_model(PlayedSource().cluster())
    assert model is not None
    assert (model["policy"], model["counts"]) == ("fair-share", "1 Running, 2 Waiting")
    assert [(host["name"], host["full"]) for host in model["hosts"]] == [("h1", 1.0), ("h2", 0.25)]
    assert view_model.cluster_model(None) is None


def test_the_chart_steps_where_the_world_changes() -> None:
    _, view = PlayedSource().view("otter", 0)
    chart = world_chart(view.moments, view.moments[0].at + 120)
    assert chart is not None
    assert chart["points"] == [[0, 1], [0.25, 1], [0.25, 0.75], [0.5, 0.75], [0.5, 1], [1, 1]]
    assert [(mark["kind"], mark["x"], mark["y"]) for mark in chart["marks"]] == [
        ("loss", 0.25, 0.75),
        ("join", 0.5, 1),
        ("stall", 0.6667, 1),
    ]
    assert chart["label"] == ("Workers over time: 4 at first, 4 now, between 3 and 4; 1 loss, 1 join, 1 stall")
    assert world_chart([Moment(1.0, "event", "submitted")], 2.0) is None


@pytest.mark.parametrize("length", [1, 30, 61, 3600, 86400 * 3, 86400 * 100])
def test_ticks_are_few_and_inside(length: float) -> None:
    times = tick_times(1000.5, 1000.5 + length)
    assert len(times) <= MOST_TICKS
    assert all(1000.5 <= at <= 1000.5 + length for at in times)


def test_job_without_view_is_shown_by_its_status() -> None:
    status = JobStatus(
        "otter",
        JobState.RUNNING,
        workers=2,
        ranks=(RankStatus(0, "pod-0", "Running"), RankStatus(1, "pod-1", "Failed")),
        events=(Event(5.0, "started"),),
    )
    view = view_of_status(status)
    assert [(each.rank, each.host, each.runs) for each in view.workers] == [(0, "pod-0", True), (1, "pod-1", False)]
    assert view.moments == (Moment(5.0, "event", "started"),)


def test_lines_of_logs_lose_prefix_and_colours() -> None:
    line = line_of_log(3, "\x1b[38;5;32m[2]<stderr>:\x1b[39mloss \x1b[31mnan\x1b[0m\n")
    assert (line.number, line.worker, line.error, line.text) == (3, 2, True, "loss nan")
    assert line_of_log(0, "farandole: job otter\n").worker is None


def test_page_loads_nothing_from_elsewhere_and_has_no_inline_code() -> None:
    page = (STATIC / "page.html").read_text()
    for path in STATIC.iterdir():
        others = re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"']*", path.read_text())
        assert [each for each in others if "www.w3.org/2000/svg" not in each] == [], path.name
    assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|style=", page), "the policy would forbid it"
    assert "innerHTML" not in (STATIC / "page.js").read_text(), "what workers print is text"


def test_every_field_has_a_label_and_every_section_a_name() -> None:
    page = (STATIC / "page.html").read_text()
    sections = re.findall(r"<section[^>]*>", page)
    assert [each for each in sections if "aria-labelledby=" not in each] == []
    for name in re.findall(r"aria-labelledby=\"([\w-]+)\"", page):
        assert f'id="{name}"' in page
    for field in re.findall(r"<(?:input|select)[^>]*>", page):
        assert re.search(rf"<label[^>]*>[^<]*{re.escape(field)}", page), field
    assert '<html lang="en">' in page and 'name="viewport"' in page


# --- contrast ------------------------------------------------------------------------------------------------------


def luminance(color: str) -> float:
    """As WCAG 2 defines it."""
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [0, 1])
def test_text_is_readable_in_both_themes(theme: int) -> None:
    style = (STATIC / "style.css").read_text()
    rules = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    assert len(rules) == 2
    colors = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", rules[theme]))
    for ground in ("ground", "panel"):
        for text in ("text", "quiet", "accent", "good", "bad", "waits"):
            assert contrast(colors[text], colors[ground]) >= 4.5, (text, ground)
        for drawn in ("speed", "wait"):
            assert contrast(colors[drawn], colors["panel"]) >= 2.5, drawn

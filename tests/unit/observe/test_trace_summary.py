"""What a timeline says: overlap, stragglers and the longest waits, from records whose answer is known."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from farandole.base.trace.summary_text import as_plain, html_of, overlap_sentence, straggler_sentence, text_of
from farandole.base.trace.trace_summary import Part, calls_of, read_trace, steps_of, summarize, union
from farandole.control.cli.main import main

MS = 1000.0


def name_of(pid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}


def call(pid: int, rank: int, begin: float, agreed: float, end: float, size: int = 100) -> list[dict[str, Any]]:
    place = {"pid": pid, "tid": rank}
    return [
        {"name": "NEGOTIATE_ALLREDUCE", "ph": "B", **place, "ts": begin * MS},
        {"ph": "E", **place, "ts": agreed * MS},
        {"name": "ALLREDUCE", "ph": "B", **place, "ts": agreed * MS},
        {"name": "RING_ALLREDUCE", "ph": "B", **place, "ts": agreed * MS},
        {"ph": "E", **place, "ts": end * MS},
        {"ph": "E", **place, "ts": end * MS, "args": {"bytes": size}},
    ]


def two_steps() -> list[dict[str, Any]]:
    """Two ranks, two steps of two tensors; rank 1 is late in the first tensor of each, by 10 and 30 ms."""
    told = [name_of(1, "allreduce.b"), name_of(2, "allreduce.a")]
    for start, late in ((0.0, 10.0), (100.0, 30.0)):
        ready = start + late
        for rank, begin in ((0, start), (1, ready)):
            told += call(1, rank, begin, ready, ready + 4.0)  # Moves for 4 ms, of which 2 before the next call.
        for rank in (0, 1):
            told += call(2, rank, ready + 2.0, ready + 4.0, ready + 10.0)
    return told


def test_the_numbers_of_a_small_trace() -> None:
    summary = summarize(two_steps())
    assert (summary.calls, summary.bytes, summary.seconds) == (4, 400, pytest.approx(0.140))
    rank_0, rank_1 = summary.ranks
    assert (rank_1.last_in, rank_1.waited_for, rank_1.waiting) == (2, pytest.approx(0.040), 0.0)
    assert (rank_0.last_in, rank_0.waited_for, rank_0.waiting) == (0, 0.0, pytest.approx(0.040))
    for rank in summary.ranks:
        # Each step moves from `ready` to `ready + 10`; its last call is at `ready + 2`.
        assert (rank.steps, rank.moving, rank.hidden) == (2, pytest.approx(0.020), pytest.approx(0.004))
        assert (rank.overlap, rank.tail_of_step) == (pytest.approx(0.2), pytest.approx(0.008))
    assert summary.straggler is rank_1
    assert [(wait.name, wait.rank, round(wait.seconds, 4)) for wait in summary.waits] == [
        ("allreduce.b", 1, 0.030),
        ("allreduce.b", 1, 0.010),
    ]


def test_only_the_ten_longest_waits_are_kept() -> None:
    told = [name_of(1, "g")]
    for step in range(20):
        for rank, begin in ((0, 0.0), (1, float(step))):
            told += call(1, rank, 100.0 * step + begin, 100.0 * step + step, 100.0 * step + step + 1)
    waits = summarize(told).waits
    assert [round(wait.seconds * 1000) for wait in waits] == list(range(19, 9, -1))


def test_parts_of_one_call_are_found_by_time_when_some_are_missing() -> None:
    parts = [Part(0, 0, 10, 12), Part(1, 9, 10, 12), Part(1, 20, 31, 33), Part(0, 50, 60, 62), Part(1, 59, 61, 62)]
    assert calls_of(parts) == [parts[:2], [parts[2]], parts[3:]], "rank 0's second part was lost"


def test_steps_end_where_a_tensor_comes_again() -> None:
    parts = [(1, Part(0, 0, 1, 2)), (2, Part(0, 1, 2, 3)), (1, Part(0, 5, 6, 7)), (2, Part(0, 6, 7, 8))]
    assert [len(step) for step in steps_of(parts)] == [2, 2]
    assert union([(3, 4), (0, 2), (1, 3)]) == [(0, 4)]


def test_broken_or_lost_events_are_not_counted() -> None:
    broken = call(1, 0, 0.0, 1.0, 2.0)
    broken[-1]["args"]["unfinished"] = True
    lost = {"name": "EVENTS_LOST", "ph": "i", "pid": 0, "tid": 1, "ts": 5.0, "args": {"rank": 1, "count": 7}}
    end_only = {"ph": "E", "pid": 3, "tid": 0, "ts": 1.0}
    summary = summarize([name_of(1, "g"), end_only, *broken, lost])
    assert (summary.calls, summary.lost_events, summary.ranks) == (0, 7, [])
    assert overlap_sentence(summary) == "Nothing was moved."


def test_ranks_that_are_alike_have_no_straggler() -> None:
    told = [name_of(1, "g")]
    for step in range(4):
        late = step % 2
        for rank in (0, 1):
            begin = 100.0 * step + (5.0 if rank == late else 0.0)
            told += call(1, rank, begin, 100.0 * step + 5, 100.0 * step + 6)
    summary = summarize(told)
    assert summary.straggler is None
    assert straggler_sentence(summary) == "No rank is much slower than the others."


def test_a_file_whose_writer_was_killed_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text("[\n" + ",\n".join(json.dumps(record) for record in two_steps()) + ',\n{"name":"NEGO')
    assert summarize(read_trace(path)) == summarize(two_steps())


def write(path: Path) -> Path:
    path.write_text("[\n" + ",\n".join(json.dumps(record) for record in two_steps()) + "\n]\n")
    return path


def test_the_command_prints_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, page = write(tmp_path / "t.json"), tmp_path / "t.html"
    assert main(["trace", "summary", str(path), "--html", str(page)]) == 0
    assert capsys.readouterr().out.splitlines() == text_of(summarize(two_steps()))
    assert main(["trace", "summary", str(path), "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain == as_plain(summarize(two_steps()))
    assert plain["straggler"] == 1 and plain["longest_waits"][0]["seconds"] == pytest.approx(0.030)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (None, "cannot be read"),
        ("{}", "is not a timeline"),
        ("[\n]\n", "has no complete collective"),
        ('[\n{"ph":"B"}\n]', "is not a timeline"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, what: str) -> None:
    path = tmp_path / "t.json"
    if content is not None:
        path.write_text(content)
    assert main(["trace", "summary", str(path)]) == 2
    error = capsys.readouterr().err
    assert what in error and "hint:" in error


class Tags(HTMLParser):
    """Keeps which tags are open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.asked: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.asked += [f"{name}={value}" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag == "rect"


def test_the_page_needs_nothing_else_and_takes_names_as_text() -> None:
    told = two_steps()
    told[0] = name_of(1, '<script>alert("1")</script>')
    page = html_of(summarize(told), "<t>.json")
    tags = Tags()
    tags.feed(page)
    assert (tags.open, tags.asked) == ([], [])
    assert "<script" not in page and "&lt;script&gt;" in page
    assert "30.0 ms" in page and straggler_sentence(summarize(told)) in page

"""From trials to what people read."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest
from benchmarks.elastic import jobs, report
from benchmarks.elastic.bench import Bench, Trial
from benchmarks.elastic.events import EVENTS
from benchmarks.elastic.events.base import COUNT, Event, Measure
from benchmarks.elastic.peers import PEERS, Peer


def take_nothing(bench: Bench, peer: Peer) -> list[Trial]:
    return []


EVENT = Event("fall", "a fall", "1 s", (Measure("up", compared=True), Measure("lost", COUNT)), take_nothing)
RESULT = report.EventResult(
    "fall",
    {
        "farandole": [Trial("went on", {"up": up, "lost": 0}) for up in (0.010, 0.030, 0.020)],
        "other": [
            Trial("went on", {"up": 5.0, "lost": 2}),
            Trial("crashed", detail=": AssertionError"),
            Trial("crashed", detail=": AssertionError"),
        ],
        "third": [Trial("did not start")],
    },
    {"fourth": "is not installed"},
    60.0,
)


@pytest.mark.parametrize("module", [report, jobs])
def test_examples_in_docstrings_hold(module: object) -> None:
    failed, tried = doctest.testmod(module)  # type: ignore[arg-type]
    assert tried and not failed


def test_a_section_has_medians_ratios_and_what_happened() -> None:
    assert report.section(EVENT, RESULT) == (
        "**fall: a fall** (median / worst; goal: 1 s; measured in 60 s)\n"
        "\n"
        "|           | trials |                up |  lost | up / ours |\n"
        "| --------: | -----: | ----------------: | ----: | --------: |\n"
        "| farandole |      3 | 20.0 ms / 30.0 ms | 0 / 0 |       1.0 |\n"
        "|     other |      3 |   5.00 s / 5.00 s | 2 / 2 |     250.0 |\n"
        "|     third |      1 |                 - |     - |           |\n"
        "\n"
        "- farandole: all: went on\n"
        "- other: 2 of 3: crashed; 1 of 3: went on (it said: AssertionError)\n"
        "- third: all: did not start\n"
        "- fourth: not measured: is not installed"
    )


def test_results_come_back_from_their_file(tmp_path: Path) -> None:
    results = report.Results({"cores": 2}, True, [RESULT])
    results.write(tmp_path / "numbers.json")
    assert report.Results.read(tmp_path / "numbers.json") == results


def test_a_document_keeps_its_other_text(tmp_path: Path) -> None:
    machine = {
        "date": "today",
        "processor": "P",
        "cores": 2,
        "memory_mb": 2048,
        "system": "S",
        "python": "3",
        "versions": {},
    }
    document = tmp_path / "elastic.md"
    document.write_text("before <!-- bench:elastic -->old<!-- /bench:elastic --> after")
    assert report.has_region(document) and not report.has_region(tmp_path / "another.md")
    report.write_document(document, [EVENT], report.Results(machine, False, [RESULT]))
    text = document.read_text()
    assert text.startswith("before <!-- bench:elastic -->\n") and text.endswith("<!-- /bench:elastic --> after")
    assert "old" not in text and "20.0 ms / 30.0 ms" in text


def test_names_are_what_the_command_line_takes() -> None:
    for names in ([event.name for event in EVENTS], [peer.name for peer in PEERS]):
        assert len(set(names)) == len(names)
        assert not any(character in name for name in names for character in " ,")
    events = {event.name for event in EVENTS}
    assert all(set(peer.events or ()) <= events for peer in PEERS)

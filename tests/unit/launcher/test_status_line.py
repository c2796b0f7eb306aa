"""The status line: its text, the ranks that it calls slow, and when it is drawn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from farandole.control.launcher.output.console import Console, OutputOptions
from farandole.control.launcher.output.status_line import (
    REDRAW_SECONDS,
    ProgressReport,
    Slowest,
    Status,
    StatusLine,
    find_slowest,
)
from farandole.control.launcher.output.terminal import Look

THREE_HOSTS = (("h1", (0, 1)), ("h2", (2, 3)), ("h3", (4, 5)))


def running(hosts: tuple[tuple[str, tuple[int, ...]], ...], *down: int) -> Status:
    everyone = {rank for _, there in hosts for rank in there}
    return Status(hosts, everyone - set(down))


def told(status: Status, waiting: dict[int, float], steps: int = 24, seconds: float = 2.0) -> Status:
    """Let ranks report twice: in between, they have made some steps and waited for these parts of the time."""
    for rank, part in waiting.items():
        status.told(rank, ProgressReport(100.0, 1000, 50.0))
        status.told(rank, ProgressReport(100.0 + seconds, 1000 + steps, 50.0 + part * seconds))
    return status


def test_status_line_before_workers_start() -> None:
    assert Status(THREE_HOSTS).text(80) == "0/6 up · h1 0/2 · h2 0/2 · h3 0/2"


def test_complete_status_line() -> None:
    status = told(running(THREE_HOSTS), {0: 0.4, 1: 0.38, 2: 0.4, 3: 0.42, 4: 0.4, 5: 0.09})
    text = "6/6 up · h1 2/2 · h2 2/2 · h3 2/2 · 12.0 steps/s · slowest rank 5 (h3), others waited 31%"
    assert status.text(200) == text
    assert status.text(40) == text[:39] + "…"


def test_ended_worker_is_not_counted() -> None:
    status = told(running(THREE_HOSTS), {0: 0.4, 1: 0.4, 5: 0.0})
    status.ended(5)
    assert status.text(200) == "5/6 up · h1 2/2 · h2 2/2 · h3 1/2 · 12.0 steps/s"
    status.up.add(5)
    assert status.text(200).startswith("6/6 up")


def test_single_host_is_not_shown() -> None:
    status = told(running((("earth", (0, 1)),)), {0: 0.5, 1: 0.1})
    assert status.text(200) == "2/2 up · 12.0 steps/s · slowest rank 1, others waited 40%"


@pytest.mark.parametrize(
    ("down", "text"),
    [
        ((), "512/512 up · 256 hosts"),
        ((7,), "511/512 up · 256 hosts, incomplete: n3 1/2"),
        ((0, 2, 4, 5, 6, 8), "506/512 up · 256 hosts, incomplete: n0 1/2, n1 1/2, n2 0/2, 2 more"),
    ],
)
def test_hosts_are_named_only_if_workers_are_missing(down: tuple[int, ...], text: str) -> None:
    hosts = tuple((f"n{number}", (2 * number, 2 * number + 1)) for number in range(256))
    assert running(hosts, *down).text(200) == text


def test_slow_ranks_of_several_hosts() -> None:
    status = told(running(THREE_HOSTS), {0: 0.0, 1: 0.4, 2: 0.02, 3: 0.4, 4: 0.4, 5: 0.4}, steps=0)
    assert status.text(200).endswith("h3 2/2 · 0.00 steps/s · slowest ranks 0, 2, others waited 39%")


def test_waiting_is_shown_without_steps() -> None:
    status = running(THREE_HOSTS)
    for rank, part in ((0, 0.5), (1, 0.5), (2, 0.0)):
        status.told(rank, ProgressReport(0.0, 0, 0.0))
        status.told(rank, ProgressReport(2.0, 0, part * 2))
    assert status.text(200).endswith("h3 2/2 · slowest rank 2 (h2), others waited 50%")


@pytest.mark.parametrize(
    ("steps", "text"), [(1000, "500 steps/s"), (3, "1.5 steps/s"), (1, "0.50 steps/s"), (0, "0.00 steps/s")]
)
def test_rates(steps: int, text: str) -> None:
    assert told(running(THREE_HOSTS), {0: 0.0}, steps).text(200).endswith(text)


def test_few_steps_give_no_rate() -> None:
    assert told(running(THREE_HOSTS), {0: 0.5, 1: 0.0}, seconds=1.0).text(200).endswith("h3 2/2")


def test_only_the_last_seconds_count() -> None:
    status = running(THREE_HOSTS)
    for second in range(30):
        status.told(0, ProgressReport(float(second), second if second < 19 else 18 + (second - 18) * 7, 0.0))
    assert status.text(200).endswith("7.0 steps/s")
    assert len(status.reports[0]) <= 11


def test_restarted_worker_is_counted_from_zero() -> None:
    status = told(running(THREE_HOSTS), {0: 0.0})
    status.told(0, ProgressReport(103.0, 1, 0.0))
    assert status.text(200).endswith("h3 2/2")


@pytest.mark.parametrize(
    ("waiting", "slowest"),
    [
        ({}, None),
        ({0: 0.1}, None),
        ({0: 0.3, 1: 0.35, 2: 0.25}, None),
        ({0: 0.5, 1: 0.1}, Slowest((1,), 0.4)),
        ({0: 0.4, 1: 0.4, 2: 0.1, 3: 0.1}, Slowest((2, 3), 0.3)),
        ({0: 0.0, 1: 0.0, 2: 0.0, 3: 0.9}, None),
        ({0: 1.4, 1: 0.0}, Slowest((1,), 1.0)),
    ],
)
def test_slow_ranks_are_named(waiting: dict[int, float], slowest: Slowest | None) -> None:
    found = find_slowest(waiting)
    if slowest is None or found is None:
        assert found is slowest
    else:
        assert (found.ranks, found.waited) == (slowest.ranks, pytest.approx(slowest.waited))


# --- on the console ------------------------------------------------------------------------------------------------


class Board(Console):
    """A console that remembers what status it was to show."""

    def __init__(self, terminal: int | None = 1, status: bool = True) -> None:
        options = OutputOptions(status=status)
        super().__init__(lambda data: None, lambda data: None, options=options, err_look=Look(terminal=terminal))
        self.shown: list[str | None] = []

    def show_status(self, status: Callable[[int], str] | None) -> None:
        self.shown.append(None if status is None else status(200))


async def busy(board: Board, places: Callable[[], list[tuple[str, range]]]) -> None:
    line = StatusLine(board, places)
    for rank in range(100):
        line.worker_started(rank)
    await asyncio.sleep(REDRAW_SECONDS / 10)
    for rank in range(100):
        line.worker_ended(rank)
        line.progress(rank, 1, 0.0, 1.0)  # Comes too late: it is dropped.
    shown = len(board.shown)
    while board.has_status and len(board.shown) == shown:
        await asyncio.sleep(0.01)
    line.worker_started(0)
    line.close()
    await asyncio.sleep(2 * REDRAW_SECONDS)


def on_earth() -> list[tuple[str, range]]:
    return [("earth", range(100))]


def test_many_changes_are_drawn_together() -> None:
    board, listed = Board(), 0

    def places() -> list[tuple[str, range]]:
        nonlocal listed
        listed += 1
        return on_earth()

    asyncio.run(asyncio.wait_for(busy(board, places), 60))
    assert board.close(10)
    assert board.shown == ["100/100 up", "0/100 up", None]
    assert listed == 2


def test_status_that_was_read_does_not_change_while_the_console_writes_it() -> None:
    async def read() -> None:
        line = StatusLine(Board(), on_earth)
        line.worker_started(0)
        line.progress(0, 1, 0.0, 1.0)
        status = line.now
        line.worker_ended(0)
        assert (status.up, list(status.reports)) == ({0}, [0])
        line.close()

    asyncio.run(asyncio.wait_for(read(), 60))


@pytest.mark.parametrize("place", [{"terminal": None}, {"status": False}])
def test_no_status_line_without_terminal(place: dict[str, Any]) -> None:
    board = Board(**place)
    asyncio.run(asyncio.wait_for(busy(board, on_earth), 60))
    assert board.close(10)
    assert board.shown == [None]

"""Times of a launcher that ran on another machine."""

from __future__ import annotations

from dataclasses import replace

from slot_jobs import beginning

from farandole.control.launcher.slots.job_state import End, Site, Slot
from farandole.control.launcher.supervise.moved_clock import ClockReading, moved_state


def test_times_are_converted_between_clocks() -> None:
    there = ClockReading("a", monotonic=1000.0, wall=50_000.0)
    here = ClockReading("b", monotonic=20.0, wall=50_010.0)

    # 10 s have passed: what was 1000 there is 10 here.
    assert 1000.0 + there.seconds_to(here) == 10.0


def test_processes_of_one_machine_agree_whatever_the_time_of_day_does() -> None:
    assert ClockReading("a", 1000.0, 50_000.0).seconds_to(ClockReading("a", 1010.0, 99_999.0)) == 0.0


def test_missing_times_stay_missing() -> None:
    site = Site("h", 1, (Slot(0, not_before=7.0), Slot(1)), failed_at=(5.0,))
    state = replace(beginning(1, 2), sites=(site,), joined_at={3: 4.0}, end=End(since=6.0, grace=5.0))

    moved = moved_state(state, 100.0)

    assert [slot.not_before for slot in moved.sites[0].slots] == [107.0, 0.0]
    assert (moved.sites[0].failed_at, moved.joined_at, moved.short_since) == ((105.0,), {3: 104.0}, None)
    assert moved.end == End(since=106.0, grace=5.0)

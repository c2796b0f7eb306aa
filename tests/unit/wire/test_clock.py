"""Comparing clocks by round trips."""

from __future__ import annotations

from farandole.base.wire import clock
from farandole.base.wire.clock import KEPT_ROUND_TRIPS, ClockOffset


def test_processes_of_one_kernel_share_a_clock() -> None:
    offset = ClockOffset()
    assert not offset.known and not offset.exact and offset.nanoseconds == 0
    offset.measured(100, 5000, 900, clock.identity())
    assert offset.known and offset.exact and offset.nanoseconds == 0


def test_fastest_round_trip_is_used() -> None:
    offset = ClockOffset()
    offset.measured(1000, 61_000, 5000, "another machine")
    assert offset.known and not offset.exact
    assert offset.nanoseconds == 58_000
    offset.measured(10_000, 70_050, 10_100, "another machine")
    assert offset.nanoseconds == 60_000
    offset.measured(20_000, 90_000, 30_000, "another machine")
    assert offset.nanoseconds == 60_000


def test_old_round_trips_expire() -> None:
    offset = ClockOffset()
    offset.measured(0, 500, 2, "x")
    for turn in range(KEPT_ROUND_TRIPS):
        offset.measured(turn * 1000, turn * 1000 + 750, turn * 1000 + 100, "x")
    assert offset.nanoseconds == 700


def test_clock_without_identity_is_not_assumed_to_be_shared() -> None:
    offset = ClockOffset()
    offset.measured(0, 10, 2, "")
    assert not offset.exact and offset.nanoseconds == 9

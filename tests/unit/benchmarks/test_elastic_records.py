"""From the steps that workers note to the numbers about an event."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.elastic.records import (
    GIVEN_UP,
    RECORD,
    SUFFIX,
    Reader,
    Step,
    gaps,
    longest_pause,
    lost_steps,
    median_step,
    next_step,
    next_step_of_anyone,
    step_seconds,
    whole_world,
)

MS = 1_000_000
A, B, C, NEW = 11, 12, 13, 14


def steps_of(size: int, number: int, at: int, pids: tuple[int, ...] = (A, B, C)) -> list[Step]:
    """Return the records of one step of these workers, a microsecond after one another from `at` milliseconds on."""
    return [Step(at * MS + 1000 * rank, number, size, rank, pid) for rank, pid in enumerate(pids)]


def test_a_reader_returns_each_record_once_and_never_half_of_one(tmp_path: Path) -> None:
    file = tmp_path / f"{A}{SUFFIX}"
    record = RECORD.pack(5, 1, 3, 0)
    file.write_bytes(record + RECORD.pack(7, 2, 3, 0)[:9])
    (tmp_path / f"{B}{SUFFIX}").write_bytes(RECORD.pack(4, 1, 3, 1))
    reader = Reader(tmp_path)
    assert reader.read() == [Step(4, 1, 3, 1, B), Step(5, 1, 3, 0, A)]
    assert reader.read() == []
    file.write_bytes(record + RECORD.pack(7, 2, 3, 0))
    assert reader.read() == [Step(7, 2, 3, 0, A)]


def test_a_step_that_the_victim_may_have_taken_part_in_is_not_the_first_without_it() -> None:
    # A has done its part of step 2, which B and C finish just after its death.
    steps = [*steps_of(3, 1, 10), *steps_of(3, 2, 20, (B, C)), *steps_of(2, 3, 35, (B, C))]
    first = next_step(steps, 19 * MS, A, {B, C})
    assert first is not None and (first.time, first.pid) == (35 * MS, B)


def test_a_step_done_again_by_fewer_is_without_the_victim() -> None:
    steps = [*steps_of(3, 1, 10), *steps_of(2, 2, 30, (B, C))]
    first = next_step(steps, 15 * MS, A, {B, C})
    assert first is not None and first.number == 2


def test_a_step_two_further_on_is_without_the_victim_when_another_has_taken_its_place() -> None:
    steps = [*steps_of(3, 1, 10), *steps_of(3, 2, 40, (B, C)), *steps_of(3, 3, 50, (B, C, NEW))]
    first = next_step(steps, 15 * MS, A, {B, C})
    assert first is not None and first.number == 3


def test_a_step_of_a_newcomer_alone_is_not_one_of_the_survivors() -> None:
    steps = [*steps_of(3, 1, 10), *steps_of(1, 0, 40, (NEW,))]
    assert next_step(steps, 15 * MS, A, {B, C}) is None
    first = next_step_of_anyone(steps, 15 * MS, {A, B, C})
    assert first is not None and first.pid == NEW


def test_a_victim_that_never_made_a_step_says_nothing() -> None:
    assert next_step(steps_of(2, 1, 10, (B, C)), 5 * MS, A, {B, C}) is None


def test_a_step_that_all_did_is_not_lost() -> None:
    steps = [*steps_of(3, 1, 10), *steps_of(2, 2, 30, (B, C))]
    assert lost_steps(steps, 15 * MS, steps[-2], {B, C}) == 0


def test_a_step_that_one_finished_before_and_another_after_the_event_is_not_lost() -> None:
    steps = [*steps_of(3, 1, 10), *steps_of(3, 2, 14, (B,)), *steps_of(2, 2, 30, (C,)), *steps_of(2, 3, 40, (B, C))]
    first = next_step(steps, 15 * MS, A, {B, C})
    assert first is not None and (first.pid, first.number) == (C, 2)
    assert lost_steps(steps, 15 * MS, first, {B, C}) == 0


def test_steps_done_again_and_steps_given_up_are_lost() -> None:
    checkpoint_at_4 = [*steps_of(3, 7, 10), *steps_of(3, 4, 90, (NEW, 15, 16))]
    assert lost_steps(checkpoint_at_4, 15 * MS, checkpoint_at_4[3], set()) == 4
    given_up = [*steps_of(3, 1, 10), *steps_of(GIVEN_UP, 2, 20, (B, C)), *steps_of(2, 2, 30, (B, C))]
    assert lost_steps(given_up, 15 * MS, given_up[-2], {B, C}) == 1


def test_a_worker_that_stands_still_does_not_look_fast() -> None:
    steps = [*steps_of(1, 1, 10, (A,)), *steps_of(1, 2, 20, (A,))]
    assert gaps(steps, {A}, 0, 100 * MS) == pytest.approx([0.010, 0.080])
    assert gaps(steps, {B}, 0, 100 * MS) == pytest.approx([0.100])


def test_given_up_steps_do_not_count_as_steps() -> None:
    steps = [*steps_of(1, 1, 10, (A,)), *steps_of(GIVEN_UP, 2, 15, (A,)), *steps_of(1, 2, 20, (A,))]
    assert median_step(steps, {A}, 0, 20 * MS) == pytest.approx(0.005)
    assert max(gaps(steps, {A}, 0, 20 * MS)) == pytest.approx(0.010)


def test_the_longest_pause_is_that_of_one_who_trains_on() -> None:
    steps = [step for number, at in enumerate((0, 10, 20, 70, 80, 90)) for step in steps_of(1, number, at, (A,))]
    assert longest_pause(steps, {A}, 0, 95 * MS) == pytest.approx(0.050)


def test_the_longest_pause_reaches_to_those_that_came_instead() -> None:
    steps = [*steps_of(1, 1, 10, (A,)), *steps_of(1, 1, 60, (NEW,)), *steps_of(1, 2, 95, (NEW,))]
    assert longest_pause(steps, {A}, 0, 100 * MS) == pytest.approx(0.050)


def test_a_world_is_whole_when_the_latest_steps_of_all_are_of_its_size() -> None:
    steps = [*steps_of(3, 1, 10), *steps_of(2, 2, 20, (B, C))]
    assert whole_world(steps, 3, 0) is None
    assert whole_world(steps, 2, 15 * MS) == {B, C}
    assert whole_world(steps_of(3, 1, 10), 3, 0) == {A, B, C}


def test_the_seconds_of_a_turn_are_those_of_rank_0() -> None:
    steps = [step for number, at in enumerate((0, 50, 70, 90, 190)) for step in steps_of(2, number, at, (A, B))]
    assert step_seconds(steps, range(1, 4)) == pytest.approx(0.020)

"""Decisions that are carried out step by step: the next slots of each job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from farandole.control.scheduler.account import Account
from farandole.control.scheduler.handover import Holder, count, next_slots


def elastic(has: dict[str, int], **more: Any) -> Holder:
    plain = Holder(has, has, least=1, most=4, resizes=True, suspends=True)
    return replace(plain, **more)


def rigid(has: dict[str, int], **more: Any) -> Holder:
    return elastic(has, resizes=False, **more)


@pytest.mark.parametrize(
    ("has", "want", "free", "lives", "then"),
    [
        ({"h1": 2}, {"h1": 1}, {}, ["h1"], {"h1": 1}),
        ({"h1": 1}, {"h1": 2}, {"h1": 1}, ["h1"], {"h1": 2}),
        ({"h1": 1}, {"h1": 2, "h2": 2}, {"h2": 1}, ["h1"], {"h1": 1, "h2": 1}),
        ({"h1": 2}, {"h2": 2}, {"h2": 2}, ["h1"], {"h1": 2, "h2": 2}),
        ({"h1": 2, "h2": 2}, {"h2": 2}, {}, ["h1"], {"h1": 2, "h2": 2}),
        ({"h1": 2, "h2": 2}, {"h2": 2}, {}, ["h1", "h2"], {"h2": 2}),
        ({"h1": 2, "h2": 2}, {"h2": 2}, {}, None, {"h2": 2}),
        ({"h1": 4}, {"h2": 4}, {"h2": 4}, ["h1"], {"h1": 1, "h2": 3}),
        ({"h1": 2, "h2": 2}, {"h3": 4}, {"h3": 4}, ["h1", "h2"], {"h1": 1, "h3": 3}),
        ({"h1": 1, "h2": 1, "h3": 1, "h4": 1}, {"h5": 4}, {"h5": 4}, ["h1"], {"h1": 1, "h5": 3}),
        ({"h1": 2}, {"h2": 2}, {}, ["h1"], {"h1": 2}),
        ({"h1": 2}, {}, {}, ["h1"], {}),
    ],
    ids=[
        "shrinks",
        "grows",
        "as far as there is room",
        "moves: first both",
        "then both until a worker is there",
        "then one",
        "where its workers are is not known",
        "never above the most",
        "never above the most, from two places",
        "never above the most, from as many places",
        "no room yet",
        "is suspended",
    ],
)
def test_elastic_job_moves_to_its_slots_step_by_step(
    has: dict[str, int], want: dict[str, int], free: dict[str, int], lives: Sequence[str] | None, then: dict[str, int]
) -> None:
    slots = {place: free.get(place, 0) + has.get(place, 0) for place in {**free, **has}}
    found, _ = next_slots({"a": elastic(has, lives=lives)}, {"a": want}, slots)
    assert found == {"a": then}


def test_elastic_job_gets_wanted_slots_that_are_free() -> None:
    places = [{"h1": 4}, {"h2": 4}, {"h1": 2, "h2": 2}, {"h3": 1, "h4": 1, "h1": 1, "h2": 1}, {"h4": 1}]
    slots = dict.fromkeys(("h1", "h2", "h3", "h4"), 4)
    for has in places:
        for want in places:
            job = elastic(has)
            for _ in range(3):
                then = next_slots({"a": job}, {"a": want}, slots)[0]["a"]
                assert 1 <= count(then) <= 4 and any(place in then for place in job.has)
                job = elastic(dict(then))
            assert job.has == want


def test_slots_are_given_once_no_job_holds_them() -> None:
    waits = rigid({})
    wanted = {"new": {"h1": 2}}
    for going in (rigid({"h1": 2}), rigid({}, held={"h1": 1})):
        found, why = next_slots({"old": going, "new": waits}, wanted, {"h1": 2})
        assert found == {"old": {}, "new": {}}
        assert why == {"new": "waits: its 2 slots are still being released by other jobs"}
    assert next_slots({"new": waits}, wanted, {"h1": 2}) == ({"new": {"h1": 2}}, {})


def test_free_slots_go_to_first_job_that_wants_them() -> None:
    found, _ = next_slots({"a": rigid({}), "b": rigid({})}, {"a": {"h1": 1}, "b": {"h1": 1}}, {"h1": 1})
    assert found == {"a": {"h1": 1}, "b": {}}


def test_rigid_job_returns_its_slots_before_it_gets_others() -> None:
    assert next_slots({"a": rigid({"h1": 1})}, {"a": {"h2": 1}}, {"h1": 1, "h2": 1})[0] == {"a": {}}
    for want in ({}, {"h2": 1}):
        assert next_slots({"a": rigid({"h1": 1}, suspends=False)}, {"a": want}, {"h1": 1, "h2": 1})[0] == {
            "a": {"h1": 1}
        }


def test_job_whose_workers_have_not_begun_keeps_its_slots() -> None:
    assert next_slots({"a": elastic({"h1": 1}, settled=False)}, {"a": {"h1": 2}}, {"h1": 2})[0] == {"a": {"h1": 1}}
    assert next_slots({"a": elastic({"h1": 1}, settled=False)}, {}, {"h1": 2})[0] == {"a": {}}


def test_slots_are_given_in_multiples_of_the_step() -> None:
    job = elastic({"": 2}, step=2, most=8)
    assert next_slots({"a": job, "b": rigid({"": 3})}, {"a": {"": 8}, "b": {"": 3}}, {"": 8})[0]["a"] == {"": 4}


def test_account_accumulates_earlier_slots() -> None:
    account = Account(since=5.0).changed(2, 7.0).changed(4, 10.0).changed(0, 11.0)
    assert account == Account(0, 11.0, 7.0, served_before=10.0, ran_before=4.0, restarts=1)
    again = account.changed(1, 12.0)
    assert (again.served(14.0), again.ran(14.0), again.restarts) == (12.0, 6.0, 2)
    assert again.ran(11.0) == account.ran(11.0), "a clock that was set back takes nothing away"

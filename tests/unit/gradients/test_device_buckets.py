"""Which gradients on a device travel together, on plain memory with ranks as threads."""

from __future__ import annotations

import pytest
from plain_gradients import Rank, Session, World, patch, run

from farandole.worker.gradients import device_buckets

SIZES = {name: 16 for name in "abcd"}  # 64 bytes each.
ON_ONE = dict.fromkeys("abcd", "gpu")


@pytest.fixture(autouse=True)
def threads_as_ranks(monkeypatch):
    patch(monkeypatch)
    monkeypatch.setattr(device_buckets, "LIMITS", (64, 128))


def batches_of(step, *arguments, steps=3, session=None, check=None, world=None, **how):
    """Return the names of the requests of each call of each step, on two ranks that do the same."""
    world = world or World(2)

    def body(rank):
        training = Rank(Session(world) if session is None else session(world), *arguments, **how)
        engine, found = training.session.engine, []
        for number in range(steps):
            begin = len(engine.batches)
            step(training, number, rank)
            training.reducer.finish()
            found.append(engine.batches[begin:])
            if check is not None:
                check(training, number)
        return found

    first, second = run(2, body)
    assert first == second
    return first


def all_four(training, number, rank):
    training.backward(a=rank, b=1, c=2 + rank, d=number)


def alone(*names):
    return [[f"allreduce.{name}"] for name in names]


def test_gradients_share_requests_from_the_second_step_on():
    def check(training, number):
        assert training.values() == {"a": 0.5, "b": 1.0, "c": 2.5, "d": float(number)}

    assert batches_of(all_four, SIZES, devices=ON_ONE, check=check) == [
        alone(*"dcba"),
        alone("d", "c", "a"),
        alone("d", "c", "a"),
    ]


def test_those_of_other_devices_and_of_the_host_go_by_themselves():
    devices = {"a": "gpu 0", "b": "gpu 1", "c": "gpu 0"}
    batches = batches_of(all_four, SIZES, devices=devices)
    # The last one of the host waits for the end of the backward pass.
    assert batches[2] == alone("c", "b", "a", "d")


def test_a_group_is_a_bucket_of_its_own_whatever_its_size():
    batches = batches_of(all_four, SIZES, devices=ON_ONE, groups=[["a", "c", "d"], ["b"]])
    assert batches[0] == [*alone("b"), ["allreduce.a", "allreduce.c", "allreduce.d"]]
    assert batches[1] == alone("b", "d")


def test_a_group_that_is_only_partly_on_the_device_stays_as_it_is():
    batches = batches_of(all_four, {"a": 2, "b": 2}, devices={"a": "gpu"}, groups=[["a", "b"]], steps=0)
    assert batches == []


def test_a_missing_gradient_is_zero_and_its_bucket_leaves_at_the_end():
    def step(training, number, rank):
        training.entries["b"].gradient = None
        training.backward(a=1, c=3, d=4)

    def check(training, number):
        assert training.values() == {"a": 1.0, "b": 0.0, "c": 3.0, "d": 4.0}

    batches = batches_of(step, SIZES, devices=ON_ONE, check=check)
    assert batches == [alone(*"dcab"), alone("d", "a", "c"), alone("d", "a", "c")]


def test_frozen_and_thawed_gradients_make_new_buckets():
    def step(training, number, rank):
        training.entries["c"].frozen = number in (0, 1, 4)
        if training.entries["c"].frozen:
            training.backward(a=1, b=2, d=4)
        else:
            all_four(training, number, rank)

    batches = batches_of(step, SIZES, devices=ON_ONE, steps=6)
    assert batches[0] == alone("d", "b", "a")
    assert batches[1] == alone("d", "b")
    assert sorted(batches[2]) == alone("b", "c", "d")  # The first step of `c`.
    assert sorted(batches[3]) == alone("b", "c", "d")
    assert sorted(batches[4]) == alone("b", "d")  # `c` has had a bucket of its own.


def elastic(world):
    session = Session(world)
    session.notices = object()
    return session


def test_elastic_jobs_have_buckets():
    batches = batches_of(all_four, SIZES, devices=ON_ONE, session=elastic)
    assert batches == [alone(*"dcba"), *[alone("d", "c", "a")] * 2]


@pytest.mark.parametrize("in_a_loop_of_steps", [True, False])
def test_buckets_are_made_anew_when_ranks_may_have_come_that_do_not_know_them(in_a_loop_of_steps):
    worlds = [World(2, 1), World(2, 2)]

    def step(training, number, rank):
        if number == 2 and in_a_loop_of_steps:
            training.session.times_made_alike += 1
        elif number == 2:
            training.session.enter(worlds[1])
        all_four(training, number, rank)

    batches = batches_of(step, SIZES, devices=ON_ONE, steps=4, session=elastic, world=worlds[0])
    assert batches == [alone(*"dcba"), alone("d", "c", "a")] * 2


def test_another_session_begins_without_buckets():
    worlds = World(2), World(2)

    def body(rank):
        training = Rank(Session(worlds[0]), SIZES, devices=ON_ONE)
        for number in range(2):
            all_four(training, number, rank)
            training.reducer.finish()
        other = Rank(Session(worlds[1]), {})  # Now this is the thread's session.
        for number in range(2):
            all_four(training, number, rank)
            training.reducer.finish()
            assert training.values() == {"a": 0.5, "b": 1.0, "c": 2.5, "d": float(number)}
        return other.session.engine.batches

    assert run(2, body) == [[*alone(*"dcba"), *alone("d", "c", "a")]] * 2


def test_passes_are_counted_for_each_gradient():
    def step(training, number, rank):
        for _ in range(2):
            all_four(training, number, rank)

    batches = batches_of(step, SIZES, devices=ON_ONE, passes=2)
    assert batches == [alone(*"dcba"), alone("d", "c", "a"), alone("d", "c", "a")]

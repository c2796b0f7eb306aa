"""What becomes of a step whose world breaks, and what ranks ask each other when a step counts."""

from __future__ import annotations

import gc
import math
import threading

import pytest
from plain_gradients import Rank, Session, World, patch, run

from farandole.errors import WorkerLostError
from farandole.worker.gradients import device_buckets

ASKED = [False, True]


class Retry:
    """What `farandole.worker.elastic` is for a reducer; the next world has this rank alone."""

    def __init__(self, *, share=1.0, early=True):
        self.share, self._early = share, early
        self.session = None
        self.meets, self.counted, self.given_out = [], [], 0
        self.result_of_others = None

    def broken(self, error):
        return isinstance(error, WorkerLostError)

    def launched(self):
        return self._early

    def ballot(self, meet):
        self.meets.append(meet)
        return ASKED

    def count(self, outcome, gradients):
        self.counted.append((list(outcome), gradients))

    def recover(self, gradients):
        self.session.enter(World(1, self.session.world.generation + 1))
        if self.result_of_others is None:
            return False
        gradients.load_state_dict(self.result_of_others)
        return True

    def give_out_again(self):
        self.given_out += 1


@pytest.fixture(autouse=True)
def threads_as_ranks(monkeypatch):
    patch(monkeypatch)


def start(world, counts, *, keeps=True, groups=None, devices=None, **how):
    retry = Retry(**how)
    session = retry.session = Session(world, retry=retry, keeps=keeps)
    return retry, Rank(session, counts, groups=groups, devices=devices)


ON_DEVICE = {"a": "gpu", "b": "gpu"}
PLACES = pytest.mark.parametrize("devices", [None, ON_DEVICE], ids=["host", "device"])


@pytest.fixture
def small_buckets(monkeypatch):
    """Give each gradient on a device its own bucket."""
    monkeypatch.setattr(device_buckets, "LIMITS", (1, 1))


def test_a_ballot_travels_with_the_last_gradients():
    world = World(2)

    def body(rank):
        retry, training = start(world, {"a": 2, "b": 2}, early=rank == 0)
        for _ in range(2):
            training.backward(a=1, b=1)
            training.reducer.finish()
        outcomes = [outcome for outcome, _ in retry.counted]
        return outcomes, training.session.engine.batches[-1]

    early, late = run(2, body)
    assert early == ([ASKED] * 2, ["allreduce.b", "allreduce.a", "elastic.ballot.a"])
    assert late == ([ASKED] * 2, ["elastic.ballot.a"])


@PLACES
def test_samples_count_alike_whatever_share_a_rank_has(devices):
    """One that counts for nothing may have no number at all."""
    world = World(2)

    def body(rank):
        _, training = start(world, {"a": 3}, share=2.0 * rank, devices=devices and {"a": "gpu"})
        for _ in range(3):
            training.backward(a=5 if rank else math.nan)
            training.reducer.finish()
            assert training.values() == {"a": 5.0}

    run(2, body)


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("turned", ["frozen", "sparse"])
@PLACES
def test_samples_count_alike_where_a_bundle_leaves_its_views(keeps, turned, devices):
    world = World(2)

    def body(rank):
        how = {"groups": [["a", "b"]], "share": 0.5 + rank, "devices": devices}
        _, training = start(world, {"a": 3, "b": 2}, keeps=keeps, **how)
        for step in range(4):
            if step == 2:
                setattr(training.entries["b"], turned, True)
            training.backward(**({"a": 5, "b": 5} if step < 2 or turned == "sparse" else {"a": 5}))
            training.reducer.finish()
            assert training.values()["a"] == 5.0

    run(2, body)


@PLACES
def test_rank_that_cannot_give_its_gradients_later_asks_all_to_meet(devices):
    world = World(2)

    def body(rank):
        retry, training = start(world, {"a": 3, "b": 1}, devices=devices)
        for step in range(5):
            training.backward(a=1, b=1)
            training.reducer.finish()
            if rank and step == 3:
                training.front_end.writes += 1
        return retry.meets

    # In the first step there are no views, and in the second one nobody knows whether somebody writes past the count.
    unchanged, changed = run(2, body)
    assert unchanged == [True, True, False, False, False]
    assert changed == [True, True, False, False, True]


@pytest.mark.parametrize("steps_before", [0, 2], ids=["general way", "views"])
@PLACES
@pytest.mark.usefixtures("small_buckets")
def test_the_survivor_finishes_the_step_with_its_own_gradients(steps_before, devices):
    world = World(2)
    begun = threading.Barrier(2)

    def body(rank):
        # The share of the world that breaks is not that of the next one.
        retry, training = start(world, {"a": 2, "b": 2}, devices=devices, share=0.5)
        for _ in range(steps_before):
            training.backward(a=rank, b=rank)
            training.reducer.finish()
        if rank == 0:
            training.backward(a=8, b=9)
            begun.wait()
            retry.share = 0.25
            training.reducer.finish()
            assert training.values() == {"a": 2.0, "b": 2.25}
            assert len(retry.counted) == steps_before + 1
            assert training.front_end.forgotten > 0
            return
        training.backward(a=4)  # One of two gradients is reduced with the one that is lost.
        begun.wait()
        world.end()

    run(2, body)


def test_reduced_gradients_are_fetched_from_ranks_that_have_them():
    world = World(2)
    retry, training = start(world, {"a": 2})
    retry.result_of_others = {"a": [6.0, 6.0]}
    training.backward(a=1)
    world.end()
    training.reducer.finish()
    assert training.values() == {"a": 6.0}
    assert retry.counted == [], "a worker that recovers lets the step count"


def test_without_kept_gradients_the_step_is_lost():
    world = World(2)
    retry, training = start(world, {"a": 2}, keeps=False)
    training.backward(a=1)
    world.end()
    training.reducer.finish()
    assert training.reducer.step_is_lost and retry.given_out == 1


def test_reduced_gradients_can_be_given_to_others_until_they_are_overwritten():
    world = World(1)
    retry, training = start(world, {"a": 2})
    for _ in range(3):
        training.backward(a=7)
        training.reducer.finish()
    reduced = retry.counted[-1][1]
    assert reduced.are_intact() and reduced.state_dict() == {"a": [7.0, 7.0]}
    training.front_end.writes += 1
    assert not reduced.are_intact()


@PLACES
def test_each_byte_is_compared_in_the_first_step_with_views(devices):
    world = World(1)
    retry, training = start(world, {"a": 2}, devices=devices and {"a": "gpu"})
    for _ in range(2):
        training.backward(a=7)
        training.reducer.finish()
    reduced = retry.counted[-1][1]
    assert reduced.are_intact()
    training.entries["a"].gradient[0] = 3.0  # The framework did not see this.
    assert not reduced.are_intact()


def test_the_next_reducer_finishes_a_step_that_was_dropped():
    world = World(2)

    def body(rank):
        session = Session(world)
        training = Rank(session, {"a": 2, "b": 2})
        training.backward(a=7, **({"b": 7} if rank == 0 else {}))
        del training
        gc.collect()
        assert len(session.dropped._dropped) == 1
        training = Rank(session, {"a": 2, "b": 2})
        training.backward(a=rank, b=rank)
        training.reducer.finish()
        assert training.values() == {"a": 0.5, "b": 0.5}

    run(2, body)


@pytest.mark.parametrize("name", ["b", "c"])
def test_step_that_one_rank_has_not_dropped_yet_is_finished_by_the_next_one_with_its_names(name):
    """An optimizer in a cycle of references is dropped when garbage is collected, on each rank at another time."""
    world = World(2)

    def body(rank):
        session = Session(world)
        training = Rank(session, {"a": 2, "b": 2})
        training.backward(a=7, **({"b": 7} if rank == 0 else {}))
        if rank == 1:
            cycle = [training]
            cycle.append(cycle)
            del cycle
        del training
        assert len(session.dropped._dropped) == 1 - rank
        training = Rank(session, {name: 2})
        training.backward(**{name: rank})
        training.reducer.finish()
        assert training.values() == {name: 0.5}
        assert bool(session.dropped._dropped) == (name == "c" and rank == 0)

    gc.disable()
    try:
        run(2, body)
    finally:
        gc.enable()


def test_reset_waits_for_calls_in_flight_and_forgets_the_step():
    world = World(2)

    def body(rank):
        training = Rank(Session(world), {"a": 2})
        training.backward(a=rank)
        training.reducer.reset()
        assert not training.reducer.pending
        training.backward(a=rank)
        training.reducer.finish()
        assert training.values() == {"a": 0.5}

    run(2, body)

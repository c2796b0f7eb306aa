"""A step of gradients on plain memory, with ranks as threads."""

from __future__ import annotations

import pytest
from plain_gradients import Rank, Session, World, patch, run

from farandole.worker.core.dtype import Sum
from farandole.worker.gradients import submit_batch


@pytest.fixture(autouse=True)
def threads_as_ranks(monkeypatch):
    patch(monkeypatch)


def test_gradients_are_averaged_and_live_in_the_arena_from_the_second_step_on():
    world = World(2)

    def body(rank):
        training = Rank(Session(world), {"a": 3, "b": 5})
        general = []
        for step in range(3):
            training.backward(a=rank + step, b=10 * rank)
            training.reducer.finish()
            assert training.values() == {"a": 0.5 + step, "b": 5.0}
            general.append(len(training.front_end.general))
        assert all(entry.view is not None for entry in training.entries.values())
        return general

    assert run(2, body) == [[2, 2, 2]] * 2


def test_gradients_that_are_ready_together_are_submitted_together():
    world = World(2)

    def body(rank):
        training = Rank(Session(world), {"a": 3, "b": 5, "c": 1})
        for _ in range(2):
            training.backward(a=1, b=2, c=3)
            training.reducer.finish()
        return training.session.engine.batches[3:]

    assert run(2, body) == [[["allreduce.c", "allreduce.b", "allreduce.a"]]] * 2


def test_a_batch_that_is_large_enough_leaves_before_the_backward_pass_ends(monkeypatch):
    monkeypatch.setattr(submit_batch, "SUBMIT_BATCH_BYTES", 16)
    world = World(2)

    def body(rank):
        training = Rank(Session(world), {"a": 3, "b": 3, "c": 3})
        for _ in range(2):
            training.backward(a=1, b=2, c=3)
            training.reducer.finish()
        return training.session.engine.batches[3:]

    assert run(2, body) == [[["allreduce.c", "allreduce.b"], ["allreduce.a"]]] * 2


def test_gradients_outside_a_backward_pass_are_submitted_at_once():
    world = World(1)
    training = Rank(Session(world, retry=None), {"a": 1})
    training.session.notices = object()  # There is somebody to reduce with, some day.
    training.backward(a=1)
    training.reducer.finish()
    training.front_end.hooks["a"]()
    assert training.session.engine.batches == [["allreduce.a"], ["allreduce.a"]]


def test_branch_that_one_rank_skipped_counts_as_zero():
    world = World(2)

    def body(rank):
        training = Rank(Session(world), {"a": 2, "b": 2})
        for _ in range(2):
            training.entries["b"].gradient = None
            training.backward(a=1, **({"b": 8} if rank else {}))
            training.reducer.finish()
            assert training.values() == {"a": 1.0, "b": 4.0}

    run(2, body)


def test_entries_of_a_group_go_together():
    world = World(2)

    def body(rank):
        training = Rank(Session(world), {"a": 2, "b": 2, "c": 2}, groups=[["a", "c"], ["b"]])
        for _ in range(2):
            training.backward(a=1, b=2, c=3)
            training.reducer.finish()
        return training.session.engine.batches

    first = [["allreduce.b"], ["allreduce.a", "allreduce.c"]]
    assert run(2, body) == [[*first, ["allreduce.b", "allreduce.a", "allreduce.c"]]] * 2


def test_one_backward_pass_too_many_is_an_error():
    world = World(2)

    def body(rank):
        training = Rank(Session(world), {"a": 2}, passes=2)
        training.backward(a=1)
        assert training.reducer.pending and training.session.engine.batches == []
        training.backward(a=2)
        with pytest.raises(AssertionError, match="backward_passes_per_step"):
            training.backward(a=3)
        training.reducer.finish()
        assert not training.reducer.pending

    run(2, body)


def test_frozen_gradients_take_no_part_until_they_are_trained():
    world = World(2)

    def body(rank):
        training = Rank(Session(world), {"a": 2, "b": 2})
        frozen = training.entries["b"]
        frozen.frozen = True
        training.backward(a=1)
        training.reducer.finish()
        assert frozen.gradient is None
        frozen.frozen = False
        training.backward(a=1, b=2 * rank)
        training.reducer.finish()
        assert training.values() == {"a": 1.0, "b": 1.0}

    run(2, body)


def test_gradients_are_reduced_when_the_arena_is_full():
    world = World(2)

    def body(rank):
        training = Rank(Session(world), {"a": 70}, op=Sum)
        training.session.engine.arena_bytes = 64
        for _ in range(3):
            training.backward(a=rank)
            training.reducer.finish()
            assert training.values() == {"a": 1.0}
        assert training.entries["a"].view.address % 64 == 0

    run(2, body)


def test_another_session_begins_without_views():
    worlds = World(2), World(2)

    def body(rank):
        training = Rank(Session(worlds[0]), {"a": 2})
        for _ in range(2):
            training.backward(a=1)
            training.reducer.finish()
        assert training.entries["a"].view is not None
        other = Rank(Session(worlds[1]), {})  # Now this is the thread's session.
        training.backward(a=rank)
        assert training.entries["a"].view is None
        training.reducer.finish()
        assert training.values() == {"a": 0.5}
        assert other.session.engine.batches == [["allreduce.a"]]

    run(2, body)


def test_an_error_is_raised_and_all_others_are_waited_for():
    world = World(2)

    def body(rank):
        training = Rank(Session(world), {"a": 2, "b": 2})
        for _ in range(2):
            training.backward(a=1, b=1)
            training.reducer.finish()
        training.backward(b=rank, **({} if rank else {"a": 1}))
        if rank:
            world.end()
            return None
        with pytest.raises(Exception, match="gone"):
            training.reducer.finish()
        return training.reducer.pending

    assert run(2, body) == [False, None]

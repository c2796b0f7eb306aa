"""Process sets: registering them, and collectives in them."""

from __future__ import annotations

import time

import numpy as np
import pytest

pytestmark = pytest.mark.needs("process sets")


@pytest.fixture
def crowd(world):
    if world.size < 2:
        pytest.skip("needs at least two ranks")
    return world


def test_registering(world):
    """Every rank adds, in the same order; sets are sorted, have an id, and can be removed and added again."""

    def body(front):
        hvd = front.hvd
        size, rank = hvd.size(), hvd.rank()
        assert str(hvd.global_process_set) == (
            f"ProcessSet(process_set_id=0, ranks={list(range(size))}, mpi_comm=None)"
        )
        assert hvd.global_process_set.rank() == rank and hvd.global_process_set.size() == size
        assert hvd.global_process_set.included()
        assert not hvd.remove_process_set(hvd.global_process_set)
        if size == 1:
            return
        pair = hvd.ProcessSet([1, 0])
        assert (pair.process_set_id, pair.ranks, pair.size(), pair.included()) == (None, [0, 1], None, None)
        if size > 2:
            assert hvd.add_process_set(pair) is pair
            assert pair.process_set_id > 0
            assert str(pair) == f"ProcessSet(process_set_id={pair.process_set_id}, ranks=[0, 1], mpi_comm=None)"
            assert (pair.size(), pair.included()) == (2, rank < 2)
        last = hvd.add_process_set([size - 1])
        if rank == size - 1:
            assert last.rank() == 0
        else:
            try:
                last.rank()
            except ValueError as error:
                assert "Process is not part of provided process set." in str(error)
            else:
                raise AssertionError("rank() of a set without this rank")
        for wrong in ([size - 1], list(range(size)), [size], []):
            try:
                hvd.add_process_set(wrong)
            except ValueError as error:
                assert str(wrong) in str(error)
            else:
                raise AssertionError(f"{wrong} was registered")
        assert hvd.remove_process_set(last) and last.process_set_id is None
        assert not hvd.remove_process_set(last)
        hvd.add_process_set(last)
        assert hvd.remove_process_set(last)
        if size > 2:
            assert hvd.remove_process_set(pair)

    world.run(body)


def test_different_sets_on_different_ranks(crowd):
    """An error on all ranks, and the next set is registered as if nothing had been."""

    def body(front):
        hvd = front.hvd
        last = hvd.size() - 1
        try:
            hvd.add_process_set([0] if hvd.rank() == 0 else [last])
        except hvd.HorovodInternalError as error:
            text = str(error)
        else:
            raise AssertionError("different sets were registered")
        hvd.remove_process_set(hvd.add_process_set([last]))
        return text

    for text in crowd.run(body):
        assert "rank 0" in text and "[0]" in text, text


def test_collectives_in_sets(crowd):
    """Values come from the members only, in the set's order; the root is a rank in the world."""

    def body(front):
        hvd = front.hvd
        size, rank = hvd.size(), hvd.rank()
        evens = list(range(0, size, 2))
        odds = list(range(1, size, 2))
        sets = [hvd.add_process_set(ranks) for ranks in (evens, odds)]
        mine = sets[rank % 2]
        members = mine.ranks
        result = hvd.allreduce(front.tensor([float(rank)]), op=hvd.Sum, process_set=mine)
        assert front.number(result) == sum(members)
        assert front.number(hvd.allreduce(front.tensor([float(rank)]), process_set=mine)) == sum(members) / len(members)
        gathered = hvd.allgather(front.tensor([[rank]] * (rank + 1), "int64"), process_set=mine)
        np.testing.assert_array_equal(front.array(gathered)[:, 0], np.repeat(members, np.array(members) + 1))
        assert front.number(hvd.broadcast(front.tensor([float(rank)]), members[-1], process_set=mine)) == members[-1]
        assert hvd.broadcast_object({"from": rank}, root_rank=members[0], process_set=mine) == {"from": members[0]}
        assert hvd.allgather_object(rank, process_set=mine) == members
        hvd.barrier(process_set=mine)
        if "gradients" in front.has:
            gradient = front.gradient(
                lambda tensor: (rank + 1) * front.sum(hvd.allreduce(tensor, op=hvd.Sum, process_set=mine)), np.ones(2)
            )
            np.testing.assert_allclose(gradient, np.full(2, sum(members) + len(members)))
        theirs = sets[1 - rank % 2]
        for call in (
            lambda: hvd.allreduce(front.tensor([1.0]), process_set=theirs),
            lambda: hvd.allgather(front.tensor([1.0]), process_set=theirs),
            lambda: hvd.broadcast(front.tensor([1.0]), theirs.ranks[0], process_set=theirs),
            lambda: hvd.barrier(process_set=theirs),
        ):
            try:
                call()
            except ValueError as error:
                assert f"rank {rank}" in str(error).lower() and "member" in str(error), error
            else:
                raise AssertionError("a rank that is not a member took part")
        try:
            hvd.broadcast(front.tensor([1.0]), (members[0] + 1) % size, process_set=mine)
        except ValueError as error:
            assert "root" in str(error)
        else:
            raise AssertionError("a root that is not a member was accepted")
        for process_set in sets:
            assert hvd.remove_process_set(process_set)

    crowd.run(body)


def test_a_slow_set_holds_up_nobody(world):
    """While one set waits for its slow member, another finishes many collectives."""
    if world.size < 3:
        pytest.skip("two sets that share a rank, and a third rank, need three")

    def body(front):
        hvd = front.hvd
        rank = hvd.rank()
        slow, quick = hvd.add_process_set([0, 2]), hvd.add_process_set([0, 1])
        one = front.tensor([1.0])
        hvd.barrier()
        finished = 0.0
        if rank == 0:
            waiting = front.begin("allreduce", one, name="slow", op=hvd.Sum, process_set=slow)
        if rank in (0, 1):
            for _ in range(50):
                hvd.allreduce(one, op=hvd.Sum, process_set=quick)
            finished = time.monotonic()
        # Rank 2 joins the slow set only after the quick one is done, which the world's barrier tells it.
        hvd.barrier()
        begun = time.monotonic()
        if rank == 2:
            assert front.number(hvd.allreduce(one, name="slow", op=hvd.Sum, process_set=slow)) == 2.0
        if rank == 0:
            assert front.number(front.finish(waiting)) == 2.0
        hvd.remove_process_set(slow)
        hvd.remove_process_set(quick)
        return finished, begun

    times = world.run(body)
    assert max(finished for finished, _ in times) <= times[2][1]

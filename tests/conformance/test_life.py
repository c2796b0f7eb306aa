"""init, shutdown, and what can be asked before, between and after."""

from __future__ import annotations

import numpy as np
import pytest
from worlds import World


def test_place(world):
    def body(front):
        hvd = front.hvd
        assert hvd.is_initialized() and hvd.is_homogeneous()
        place = hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()
        hvd.init()  # Once more changes nothing.
        return place

    size = world.size
    assert world.run(body) == [(rank, size, rank, size, 0, 1) for rank in range(size)]


def test_stats(world):
    def body(front):
        hvd = front.hvd
        before = hvd.stats()
        hvd.allreduce(front.tensor([1.0] * 1000))
        after = hvd.stats()
        assert set(after) == {"operations", "rounds", "sleeps", "blocked_seconds"}
        assert {"allreduce", "allgather", "broadcast", "barrier"} < set(after["operations"])
        before, after = before["operations"]["allreduce"], after["operations"]["allreduce"]
        # An op of TensorFlow hands its input on, where there is no other rank.
        count = 0 if hvd.size() == 1 and front.runtime == "tensorflow" else 1
        assert after["requests"] == before["requests"] + count
        assert after["bytes"] == before["bytes"] + 4000 * count
        times = {"waiting_seconds", "negotiating_seconds", "moving_seconds"}
        copies = {"copied_in_bytes", "copied_out_bytes"}
        assert set(after) == {"requests", "buckets", "bytes"} | times | copies
        assert all(after[time] >= before[time] for time in times)

    world.run(body)


def test_routes(world):
    def body(_):
        from farandole.worker.core import basics

        engine = basics.current().engine
        return engine.links, engine.routes

    for rank, (links, routes) in enumerate(world.run(body)):
        ways = {"alone": set(), "shm": {"shared memory"}, "tcp": {"127.0.0.1 -> 127.0.0.1"}}
        others = set().union(*(ways[link] for link in links.split("+")))
        assert len(routes) == world.size and routes.pop(rank) == "itself"
        assert set(routes) == others


@pytest.mark.once
def test_init_and_shutdown_a_hundred_times(world):
    """Each time is a new world, which computes; descriptors do not pile up."""

    def body(front):
        import os

        hvd = front.hvd
        open_files = 0
        for turn in range(100):
            hvd.shutdown()
            assert not hvd.is_initialized()
            hvd.init()
            assert front.number(hvd.allreduce(front.tensor(float(hvd.rank() + turn)), op=hvd.Sum)) == (
                sum(range(hvd.size())) + turn * hvd.size()
            )
            if turn == 9:
                open_files = len(os.listdir("/proc/self/fd"))
        assert len(os.listdir("/proc/self/fd")) <= open_files + 2

    world.run(body)


def test_before_init_and_after_shutdown(nursery, front):
    def body(name):
        from frontends import FRONT_ENDS

        hvd = FRONT_ENDS[name].hvd
        tensor = FRONT_ENDS[name].tensor

        def all_refuse():
            for ask in (hvd.rank, hvd.size, hvd.local_rank, hvd.local_size, hvd.cross_rank, hvd.cross_size):
                try:
                    ask()
                except ValueError as error:
                    assert "has not been initialized; use hvd.init()." in str(error)
                else:
                    raise AssertionError(f"{ask} answered without a world")
            try:
                hvd.allreduce(tensor([1.0]))
            except ValueError as error:
                assert "has not been initialized; use hvd.init()." in str(error)
            else:
                raise AssertionError("a collective went through without a world")

        hvd.shutdown()  # Nothing to shut down is nothing to complain about.
        assert not hvd.is_initialized()
        assert str(hvd.global_process_set) == "ProcessSet(process_set_id=0, ranks=[], mpi_comm=None)"
        all_refuse()
        hvd.init()
        assert FRONT_ENDS[name].number(hvd.allreduce(tensor(1.0), op=hvd.Sum)) == 2.0
        hvd.shutdown()
        all_refuse()

    with World(nursery, 2) as world:
        world.run(body, front)


@pytest.mark.once
def test_static_process_sets(nursery, front):
    """Sets given to init have ids 1, 2, ...; duplicates are refused, and init can be called again."""

    def body(name):
        from frontends import FRONT_ENDS

        hvd, tensor = FRONT_ENDS[name].hvd, FRONT_ENDS[name].tensor
        try:
            hvd.init(process_sets=[hvd.ProcessSet([0, 1]), hvd.ProcessSet([1, 0])])
        except ValueError as error:
            assert "process_sets entry number 1 is a duplicate" in str(error)
        else:
            raise AssertionError("duplicate sets were taken")
        for wrong in (5, [[0, 1]], "static"):
            try:
                hvd.init(process_sets=wrong)
            except ValueError as error:
                assert "is not valid: pass a list of ProcessSet, or 'dynamic'." in str(error)
            else:
                raise AssertionError(f"{wrong} was taken for process sets")
        sets = [hvd.ProcessSet([0, 1]), hvd.ProcessSet([2])]
        hvd.init(process_sets=sets)
        assert [process_set.process_set_id for process_set in sets] == [1, 2]
        if hvd.rank() < 2:
            assert FRONT_ENDS[name].number(hvd.allreduce(tensor(1.0), op=hvd.Sum, process_set=sets[0])) == 2.0
        hvd.init(process_sets=sets)
        again = [hvd.ProcessSet([1, 0])]
        hvd.init(process_sets=again)
        assert again[0].process_set_id == 1
        hvd.barrier()
        hvd.shutdown()
        assert [process_set.process_set_id for process_set in sets] == [None, None]
        hvd.init(process_sets="dynamic")
        assert hvd.add_process_set([0]).process_set_id == 1
        hvd.shutdown()

    with World(nursery, 3) as world:
        world.run(body, front)


@pytest.mark.once
def test_static_process_sets_that_differ(nursery, front):
    """One rank passes a set too few: an error on all, instead of a wait without end; then init works."""

    def body(name):
        from frontends import FRONT_ENDS

        front = FRONT_ENDS[name]
        hvd = front.hvd
        rank = hvd_rank = int(__import__("os").environ["FARANDOLE_RANK"])
        try:
            hvd.init(process_sets=[hvd.ProcessSet([0])] if rank == 0 else None)
        except ValueError as error:
            text = str(error)
        else:
            raise AssertionError("different sets were taken")
        assert not hvd.is_initialized()
        hvd.init()
        assert front.number(hvd.allreduce(front.tensor(float(hvd_rank)), op=hvd.Sum)) == 1.0
        hvd.shutdown()
        return text

    with World(nursery, 2) as world:
        for text in world.run(body, front):
            assert "rank 0" in text and "rank 1" in text and "[[0]]" in text, text


@pytest.mark.once
def test_a_bad_setting_names_the_variable(nursery, front):
    def body(name):
        from frontends import FRONT_ENDS

        try:
            FRONT_ENDS[name].hvd.init()
        except ValueError as error:
            return str(error)
        raise AssertionError("a bad setting was taken")

    with World(nursery, 1, {"FARANDOLE_FAILURE_DEADLINE": "soon"}) as world:
        (text,) = world.run(body, front)
        assert "FARANDOLE_FAILURE_DEADLINE" in text and "'soon'" in text


@pytest.mark.once
def test_a_worker_that_does_not_come_is_named(nursery, front):
    def body(name):
        from frontends import FRONT_ENDS

        from farandole.errors import StartError

        try:
            FRONT_ENDS[name].hvd.init()
        except StartError as error:
            return str(error)
        raise AssertionError("a world without rank 1 was formed")

    with World(nursery, 2, {"FARANDOLE_START_TIMEOUT": "0.3"}) as world:
        (text,) = world.run(body, front, ranks=[0])
        assert "rank 1" in text


@pytest.mark.once
def test_a_forked_child_leaves_the_world_alone(world):
    """A child process knows its worker, takes part in nothing, and its end does not disturb the parent's world."""

    def body(front):
        import os

        hvd = front.hvd
        rank = hvd.rank()
        pid = os.fork()
        if pid == 0:
            try:
                hvd.barrier()
            except ValueError as error:
                os._exit(0 if hvd.rank() == rank and f"the worker of rank {rank}" in str(error) else 1)
            os._exit(2)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        np.testing.assert_array_equal(front.array(hvd.allreduce(front.tensor([3.0]))), [3.0])

    world.run(body)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_without_a_roster_it_is_a_world_of_one(nursery, front, transport):
    def body(name):
        import os

        from frontends import FRONT_ENDS

        front = FRONT_ENDS[name]
        for variable in list(os.environ):
            if variable in ("FARANDOLE_ROSTER", "FARANDOLE_SECRET", "FARANDOLE_RANK", "FARANDOLE_LISTEN"):
                del os.environ[variable]
        front.hvd.init()
        assert (front.hvd.rank(), front.hvd.size()) == (0, 1)
        assert front.number(front.hvd.allreduce(front.tensor(2.0))) == 2.0
        front.hvd.shutdown()

    with World(nursery, 1, {"FARANDOLE_TRANSPORT": transport}) as world:
        world.run(body, front)

"""A worker that dies, stops or leaves: every other rank's pending and later calls fail at once, naming it."""

from __future__ import annotations

import signal
import time

import pytest
from frontends import FRONT_ENDS
from worlds import World

SIZE = 3
LOST = 1
SURVIVORS = [0, 2]
# Generous: it is the failure deadline of 5 s that finds a stopped process, and the machine may be busy.
AT_ONCE_SECONDS = 30.0
HELD_UP_SECONDS = 1.5


@pytest.fixture(params=["shm", "tcp"])
def transport(request):
    return request.param


@pytest.fixture
def world(nursery, transport):
    # With the default deadline, as users have it.
    world = World(nursery, SIZE, {"FARANDOLE_TRANSPORT": transport, "FARANDOLE_FAILURE_DEADLINE": ""})
    yield world
    world.close()


def _init(name):
    hvd, tensor = FRONT_ENDS[name].hvd, FRONT_ENDS[name].tensor
    hvd.init()
    assert FRONT_ENDS[name].number(hvd.allreduce(tensor(1.0), op=hvd.Sum)) == SIZE


def _need_the_other(name):
    """Begin several calls that need the rank which will be lost."""
    from frontends import KEPT

    front = FRONT_ENDS[name]
    KEPT[:] = [front.begin("allreduce", front.tensor([1.0] * 10), name=f"pending.{index}") for index in range(3)]
    KEPT.append(front.begin("broadcast", front.tensor([1.0]), root_rank=LOST, name="pending.broadcast"))


def _wait_for_the_lost(name):
    """Return how each pending call failed, and when; then how later calls fail."""
    from frontends import KEPT

    front = FRONT_ENDS[name]
    hvd = front.hvd
    texts = []
    for call in KEPT:
        try:
            front.finish(call)
        except hvd.HorovodInternalError as error:
            texts.append((type(error).__name__, str(error), getattr(error, "rank", None)))
    failed = time.monotonic()
    for call in (lambda: hvd.allreduce(front.tensor([1.0])), hvd.barrier, lambda: hvd.allgather_object(1)):
        begun = time.monotonic()
        try:
            call()
        except hvd.HorovodInternalError as error:
            texts.append((type(error).__name__, str(error), getattr(error, "rank", None)))
        assert time.monotonic() - begun < AT_ONCE_SECONDS
    assert hvd.is_initialized() and hvd.size() == SIZE
    hvd.shutdown()
    return failed, texts


def _check(world, done, kind):
    for failed, texts in world.collect(SURVIVORS):
        assert failed - done < AT_ONCE_SECONDS
        assert len(texts) == 7
        for name, text, rank in texts:
            assert name == kind and f"rank {LOST}" in text, text
            assert rank == LOST


@pytest.mark.parametrize(
    "number",
    [pytest.param(signal.SIGKILL, id="killed"), pytest.param(signal.SIGSTOP, id="stopped", marks=pytest.mark.once)],
)
def test_lost(world, front, number):
    world.run(_init, front)
    world.run(_need_the_other, front, ranks=SURVIVORS)
    world.start(_wait_for_the_lost, front, ranks=SURVIVORS)
    world.workers[LOST].kill(number)
    _check(world, time.monotonic(), "WorkerLostError")
    world.workers[LOST].kill(signal.SIGKILL)


@pytest.mark.once
def test_held_up_for_a_while(world, front):
    """As a large process is that forks, or one whose machine is moved: the job does not end for it."""

    def reduce(name):
        hvd, tensor = FRONT_ENDS[name].hvd, FRONT_ENDS[name].tensor
        return FRONT_ENDS[name].number(hvd.allreduce(tensor(1.0), op=hvd.Sum, name="after"))

    world.run(_init, front)
    world.workers[LOST].kill(signal.SIGSTOP)
    world.start(reduce, front)
    time.sleep(HELD_UP_SECONDS)
    world.workers[LOST].kill(signal.SIGCONT)
    assert world.collect() == [SIZE] * SIZE


def test_killed_inside_large_collectives(world, front):
    def reduce_for_ever(name):
        front = FRONT_ENDS[name]
        hvd = front.hvd
        tensor = front.tensor([1.0] * 2_000_000)
        done = 0
        try:
            while True:
                assert front.array(hvd.allreduce(tensor, op=hvd.Sum)).max() == SIZE
                done += 1
        except hvd.HorovodInternalError as error:
            return done, str(error)

    world.run(_init, front)
    world.start(reduce_for_ever, front)
    time.sleep(0.2)  # Somewhere in the middle: which step it is, is chance.
    world.workers[LOST].kill()
    for _, text in world.collect(SURVIVORS):
        assert f"rank {LOST}" in text


def test_exit_in_good_order(world, front):
    """A script that ends early leaves the world; the others' calls fail as shut down."""

    def leave(name):
        FRONT_ENDS[name].hvd.shutdown()
        return time.monotonic()

    world.run(_init, front)
    world.run(_need_the_other, front, ranks=SURVIVORS)
    world.start(_wait_for_the_lost, front, ranks=SURVIVORS)
    (done,) = world.run(leave, front, ranks=[LOST])
    _check(world, done, "ShutDownError")


@pytest.mark.once
def test_uncaught_exception(world, front):
    """The interpreter's hook tells the others what was raised, before the process ends."""

    def fail(name):
        import sys

        try:
            raise RuntimeError("boom\nand more")
        except RuntimeError as error:
            sys.excepthook(type(error), error, error.__traceback__)
        return time.monotonic()

    world.run(_init, front)
    world.run(_need_the_other, front, ranks=SURVIVORS)
    world.start(_wait_for_the_lost, front, ranks=SURVIVORS)
    (done,) = world.run(fail, front, ranks=[LOST])
    for failed, texts in world.collect(SURVIVORS):
        assert failed - done < AT_ONCE_SECONDS
        for name, text, rank in texts:
            assert (name, rank) == ("WorkerLostError", LOST)
            assert "rank 1 raised RuntimeError: boom" in text and "and more" not in text
    reported = world.failures()
    assert [(rank, failure.exception, failure.consequence_of) for rank, failure in reported] == [
        (LOST, "RuntimeError: boom", None)
    ]
    assert 'raise RuntimeError("boom' in reported[0][1].traceback


@pytest.mark.once
def test_a_failure_that_follows_another_says_so(world, front):
    def follow(name):
        import sys

        hvd, tensor = FRONT_ENDS[name].hvd, FRONT_ENDS[name].tensor
        try:
            try:
                hvd.allreduce(tensor([1.0]))
            except hvd.HorovodInternalError as error:
                raise ValueError("training failed") from error
        except ValueError as error:
            sys.excepthook(type(error), error, error.__traceback__)

    world.run(_init, front)
    world.start(follow, front, ranks=SURVIVORS)
    world.workers[LOST].kill()
    world.collect(SURVIVORS)
    reported = dict(world.failures())
    assert {rank: failure.consequence_of for rank, failure in reported.items()} == {0: LOST, 2: LOST}


@pytest.mark.once
def test_an_error_of_one_rank_alone_can_be_caught(world, front):
    """An exception that is caught ends nothing."""

    def catch(name):
        hvd, tensor = FRONT_ENDS[name].hvd, FRONT_ENDS[name].tensor
        try:
            raise ValueError("caught")
        except ValueError:
            return FRONT_ENDS[name].number(hvd.allreduce(tensor(1.0), op=hvd.Sum))

    world.run(_init, front)
    assert world.run(catch, front) == [SIZE] * SIZE

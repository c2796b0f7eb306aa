"""The decorator `run` in jobs of several workers: all are alike whenever they train. Workers are threads."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from thread_worlds import SECONDS, Job, Killed, Worker

from farandole.errors import (
    EvictedError,
    HorovodInternalError,
    MismatchError,
    StateLostError,
)
from farandole.worker.elastic import world_changes
from farandole.worker.elastic.run_decorator import run_in
from farandole.worker.elastic.state import ObjectState

_here = threading.local()


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    """A job whose workers hear of changes at once, each at its next check."""
    monkeypatch.setattr(world_changes, "is_elastic", lambda: True)
    monkeypatch.setattr(world_changes, "pending_change", lambda: _here.hear())
    monkeypatch.setattr(world_changes, "coming", lambda: 0)
    job = Job()
    yield job
    job.join()


def program(
    steps: int,
    commits: Callable[[int], int] = lambda step: 1,
    disturb: Callable[[Worker, int], None] | None = None,
    hears: Callable[[], bool] = lambda: True,
) -> Callable[[Worker], Any]:
    """Return what a worker does: it trains, and sees in each step that all do the same step from the same state."""

    def work(worker: Worker) -> Any:
        _here.hear = lambda: worker.job.change(worker) if hears() else None
        state = ObjectState(worker.broadcast, lambda: worker.rank, step=0, commits=0, history=[], own=worker.name)

        def train(state: Any) -> str:
            while state.step < steps or state.commits < commits(steps):
                if state.commits < commits(state.step):
                    # What a worker does between two commits, without the others, depends on the world too.
                    state.history.append((state.step, "alone", worker.size))
                    state.commits += 1
                    state.commit()
                    continue
                if disturb is not None:
                    disturb(worker, state.step)
                everyone = worker.exchange((state.step, list(state.history), state.own))
                assert all(other == everyone[0] for other in everyone), everyone
                state.history.append((state.step, "together", len(everyone)))
                state.step, state.commits = state.step + 1, 0
            return worker.name

        return run_in(worker, train)(state), state.step, state.history, state.own

    return work


def check(results: dict[str, Any], steps: int, names: set[str]) -> None:
    """See that these workers have trained to the end, and to the same one."""
    ends = {name: result for name, result in results.items() if isinstance(result, tuple)}
    assert ends.keys() == names, results
    assert len({repr(end[1:]) for end in ends.values()}) == 1, ends
    for _, step, history, _ in ends.values():
        assert step == steps and [at for at, how, _ in history if how == "together"] == list(range(steps))


def test_all_begin_with_rank_0s_state(job: Job) -> None:
    job.start(["a", "b", "c"], program(4))
    results = job.join()
    check(results, 4, {"a", "b", "c"})
    assert results["a"][0] == "a" and results["c"][0] == "c" and len({end[3] for end in results.values()}) == 1


@pytest.mark.parametrize("victim", ["a", "b", "c"])
@pytest.mark.parametrize("every", [1, 3])
def test_a_worker_dies(job: Job, victim: str, every: int) -> None:
    def disturb(worker: Worker, step: int) -> None:
        if worker.name == victim and step == 5:
            raise Killed

    job.start(["a", "b", "c"], program(9, lambda step: int(step % every == 0), disturb))
    check(job.join(), 9, {"a", "b", "c"} - {victim})
    assert job.sizes[-1] == 2


def test_newcomers_join(job: Job) -> None:
    def disturb(worker: Worker, step: int) -> None:
        if worker.name == "a" and step == 3 and worker.size == 2:
            job.start(["c", "d"], program(60))

    job.start(["a", "b"], program(60, disturb=disturb))
    check(job.join(), 60, {"a", "b", "c", "d"})


@pytest.mark.parametrize("commits", [1, 2])
def test_a_worker_leaves(job: Job, commits: int) -> None:
    def disturb(worker: Worker, step: int) -> None:
        if worker.name == "b" and step == 4:
            job.drain("a")

    job.start(["a", "b", "c"], program(9, lambda step: commits, disturb))
    results = job.join()
    check(results, 9, {"b", "c"})
    assert isinstance(results["a"], SystemExit) and results["a"].code == 0


def test_a_newcomer_that_comes_after_the_end(job: Job) -> None:
    """A worker dies when the others have finished, and a newcomer waits for the next world."""

    training = program(3, lambda step: 0)

    def work(worker: Worker) -> Any:
        if worker.name != "c":
            return training(worker)
        exchange, calls = worker.exchange, []

        def dying(payload: Any) -> Any:
            calls.append(payload)
            if len(calls) == 6:  # To begin, to sync, three steps: this would be the last.
                job.start(["d"], training)
                while job.change(worker) is None:
                    pass
                raise Killed
            return exchange(payload)

        worker.exchange = dying  # type: ignore[method-assign]
        return training(worker)

    job.start(["a", "b", "c"], work)
    results = job.join()
    check(results, 3, {"a", "b", "d"})
    assert [results[name][0] for name in "abd"] == ["a", "b", None]


def test_a_newcomer_does_not_begin_anew_alone(job: Job) -> None:
    entered = threading.Event()

    def newcomer(worker: Worker) -> Any:
        entered.set()
        while worker.job._is_over is False:
            pass  # It is still loading its data when the only one with a state dies.
        return program(9)(worker)

    def disturb(worker: Worker, step: int) -> None:
        if step == 2:
            job.start(["b"], newcomer)
            while job.change(worker) is None:
                pass

    def work(worker: Worker) -> Any:
        worker.broadcast = lambda value: value if worker.size == 1 else _die(entered)  # type: ignore[method-assign]
        exchange = worker.exchange
        worker.exchange = lambda value: exchange(value) if worker.size == 1 else _die(entered)  # type: ignore[method-assign]
        return program(9, disturb=disturb)(worker)

    job.start(["a"], work)
    results = job.join()
    assert isinstance(results["b"], StateLostError)


def in_turn(*trainings: Callable[[Worker], Any]) -> Callable[[Worker], Any]:
    """Return what a worker does that goes through several trainings."""
    return lambda worker: [training(worker) for training in trainings]


def check_in_turn(results: dict[str, Any], steps: list[int], names: str) -> None:
    """See that these workers have come to the same end of each training that they have been in."""
    for number, many in enumerate(steps):
        ends = {name: results[name][number] for name in names}
        check({name: end for name, end in ends.items() if end[0] is not None}, many, {n for n in names if ends[n][0]})


def test_trainings_one_after_the_other(job: Job) -> None:
    job.start(["a", "b"], in_turn(program(4), program(5)))
    results = job.join()
    check_in_turn(results, [4, 5], "ab")
    assert [end[0] for end in results["b"]] == ["b", "b"] and job.sizes == [2]


@pytest.mark.parametrize("victim", ["a", "b", "c"])
def test_a_second_training_begins_in_a_later_world(job: Job, victim: str) -> None:
    """That others hold a state says nothing of a training that has not begun."""

    def disturb(worker: Worker, step: int) -> None:
        if worker.name == victim and step == 2:
            raise Killed

    job.start(["a", "b", "c"], in_turn(program(4, disturb=disturb), program(5)))
    check_in_turn(job.join(), [4, 5], "abc".replace(victim, ""))


def test_a_newcomer_is_let_through_to_the_training_that_the_others_are_in(job: Job) -> None:
    both = threading.Barrier(2)

    def disturb(worker: Worker, step: int) -> None:
        if step == 3 and worker.size == 2:
            if both.wait(SECONDS) == 0:
                job.start(["c"], work)
            while job.change(worker) is None:
                pass

    first = [program(4), program(2)]
    work = in_turn(*first, program(40, disturb=disturb))
    job.start(["a", "b"], work)
    results = job.join()
    assert [end[0] for end in results["c"]] == [None, None, "c"]
    assert results["c"][0][1] == 0, "nobody has given it this state"
    check_in_turn(results, [4, 2, 40], "abc")
    assert job.sizes == [2, 3]


def test_a_newcomer_that_leaves_out_the_first_training_itself(job: Job) -> None:
    def first(state: Any) -> str:
        return "done"

    def before(worker: Worker) -> Any:
        return run_in(worker, first)(ObjectState(worker.broadcast, lambda: worker.rank)), 0, [], ""

    def disturb(worker: Worker, step: int) -> None:
        if worker.name == "a" and step == 3 and worker.size == 2:
            job.start(["c"], in_turn(program(60)))
            while job.change(worker) is None:
                pass

    job.start(["a", "b"], in_turn(before, program(60, disturb=disturb)))
    results = job.join()
    check({name: ends[-1] for name, ends in results.items()}, 60, {"a", "b", "c"})


@pytest.mark.parametrize("victim", ["a", "c"])
def test_somebody_dies_while_the_newcomer_is_on_its_way(job: Job, victim: str) -> None:
    started = threading.Event()

    def between(worker: Worker) -> Any:
        if worker.name == "c":
            if victim == "c":
                raise Killed
            time.sleep(0.02)  # The others wait for it.
        return None, 0, [], ""

    def disturb(worker: Worker, step: int) -> None:
        if step == 3 and worker.size == 2:
            if worker.rank == 0 and not started.is_set():
                started.set()
                job.start(["c"], work)
            while len(job.sizes) == 1 and job.change(worker) is None:
                pass
        if worker.name == victim == "a" and worker.size == 3 and step == 5:
            raise Killed

    work = in_turn(program(2), between, program(30, disturb=disturb))
    job.start(["a", "b"], work)
    results = job.join()
    living = "abc".replace(victim, "")
    check({name: results[name][-1] for name in living}, 30, set(living))


def test_all_fail_when_some_hear_of_a_mismatch(job: Job) -> None:
    def disturb(worker: Worker, step: int) -> None:
        if step == 4 and worker.name != "c":
            raise MismatchError("shapes")

    job.start(["a", "b", "c"], program(9, disturb=disturb))
    results = job.join()
    assert all(isinstance(results[name], MismatchError) for name in "abc"), results
    job.start(["d"], program(9))
    assert isinstance(job.join()["d"], StateLostError), results


@pytest.mark.parametrize("newcomers", [["c"], ["c", "d"]])
def test_nobody_begins_anew_when_all_are_lost(job: Job, newcomers: list[str]) -> None:
    """Workers that are started in place of the lost ones find no survivor, and all fail with the same error."""
    both = threading.Barrier(2)

    def disturb(worker: Worker, step: int) -> None:
        if step == 4:
            if both.wait(SECONDS) == 0:
                job.start(newcomers, program(9))
            both.wait(SECONDS)
            raise Killed

    job.start(["a", "b"], program(9, disturb=disturb))
    results = job.join()
    assert all(isinstance(results[name], StateLostError) for name in newcomers), results
    assert "a was killed" in str(results["c"]) and "b was killed" in str(results["c"])


def test_a_worker_that_dies_in_the_beginning_takes_nothing_with_it(job: Job) -> None:
    """The only one that has got through the first sync has done nothing that the others have not."""

    def work(worker: Worker) -> Any:
        broadcast = worker.broadcast

        def breaking(value: Any) -> Any:
            if worker.name == "a" or worker.size == 2:
                return broadcast(value)
            while "a" not in job.results:
                pass
            raise HorovodInternalError("a is lost before all have the state")

        worker.broadcast = breaking  # type: ignore[method-assign]
        if worker.name == "a":
            # The others are not needed for it to get through.
            worker.broadcast = lambda value: value  # type: ignore[method-assign]
        return program(9, disturb=lambda worker, step: _dies(worker, "a"))(worker)

    job.start(["a", "b", "c"], work)
    check(job.join(), 9, {"b", "c"})


def _dies(worker: Worker, name: str) -> None:
    if worker.name == name:
        raise Killed


def _die(after: threading.Event) -> Any:
    after.wait()
    raise Killed


@pytest.mark.parametrize("seed", range(40))
def test_any_events(job: Job, seed: int) -> None:
    """Random deaths, newcomers and leaves; commits at random places; changes heard late and by some first."""
    chance = random.Random(seed)
    lock = threading.Lock()
    steps, names = 14, iter("cdefghij")
    per_step = [chance.choice([0, 1, 1, 2, 3]) for _ in range(steps + 1)]
    events = {chance.randrange(1, steps): chance.choice(["die", "join", "leave"]) for _ in range(4)}
    gone: set[str] = set()
    started = {"a", "b"}
    deafness = random.Random(seed + 1)

    def disturb(worker: Worker, step: int) -> None:
        with lock:
            alone = worker.size == 1
            event = None if worker.rank != worker.size - 1 else events.pop(step, None)
            if event == "join":
                name = next(names)
                started.add(name)
                job.start([name], work)
            elif event is not None and not alone:
                gone.add(worker.name)
                if event == "leave":
                    job.drain(worker.name)
                else:
                    raise Killed

    def hears() -> bool:
        with lock:
            return deafness.random() < 0.6

    def work(worker: Worker) -> Any:
        return program(steps, lambda step: per_step[step], disturb, hears)(worker)

    job.start(["a", "b"], work)
    results = job.join()
    ended = {name for name, result in results.items() if isinstance(result, tuple)}
    for name in started - ended:
        # Those who come too late are not let in.
        assert isinstance(results[name], Killed | SystemExit if name in gone else EvictedError), results
    assert ended
    check(results, steps, ended)

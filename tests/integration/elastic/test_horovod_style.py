"""Horovod's elastic interface in worlds of real processes: workers are killed, join and leave while they train."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from elastic_worlds import ElasticJob
from worlds import WorkerGone, wait_until


def train(
    steps: int,
    *,
    pause: float = 0.0,
    commit_every: int = 1,
    commits_per_step: int = 1,
    sizes: int = 1,
    most: int = 9,
    begun: str = "",
) -> dict[str, Any]:
    """Train in Horovod's style for a number of steps, until there have been worlds of several sizes and few are left.

    Once all workers have done a step, and committed it if they commit each, there is a file `begun`.
    """
    from pathlib import Path

    import torch

    import farandole.torch as hvd

    hvd.init()
    torch.manual_seed(hvd.rank())
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
    sampler = hvd.elastic.ElasticSampler(range(64))
    state = hvd.elastic.TorchState(model, optimizer, scheduler=scheduler, sampler=sampler, step=0, sizes=[])
    resets: list[int] = []
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])
    calls = 0

    def is_over() -> bool:
        happened = len(set(state.sizes)) >= sizes and hvd.size() <= most
        return state.step >= (steps if happened else 2000)

    @hvd.elastic.run
    def run(state: Any) -> int:
        nonlocal calls
        calls += 1
        while not is_over():
            optimizer.zero_grad()
            loss = model(torch.randn(8, 4)).pow(2).mean()
            loss.backward()
            optimizer.step()
            scheduler.step()
            state.sampler.record_batch(0, 1)
            state.step += 1
            state.sizes.append(hvd.size())
            if begun and state.step > 1:  # None can be through the second one before all have come to it.
                Path(begun).touch()
            time.sleep(pause)
            if state.step % commit_every == 0:
                for _ in range(commits_per_step):
                    state.commit()
            hvd.allreduce(loss.detach(), name="loss")
        return hvd.rank()

    rank = run(state)
    return {
        "rank": rank,
        "calls": calls,
        "step": state.step,
        "sizes": state.sizes,
        "resets": resets,
        "processed": sampler.processed_num,
        "lr": optimizer.param_groups[0]["lr"],
        "schedule": scheduler.last_epoch,
        "weights": [tensor.tolist() for tensor in model.state_dict().values()],
        "momentum": [state["momentum_buffer"].tolist() for state in optimizer.state.values()],
    }


ALIKE = ("step", "sizes", "processed", "lr", "schedule", "weights", "momentum")


def check_alike(results: list[dict[str, Any]]) -> None:
    for name in ALIKE:
        if name == "weights":  # Statistics of batch norm are each rank's own between syncs.
            continue
        assert all(result[name] == results[0][name] for result in results), name


def test_an_undisturbed_training_ends_alike_on_all_workers(make_job: Callable[..., ElasticJob]) -> None:
    job = make_job(fewest=2)
    workers = job.add(2)
    job.start(train, 5)
    results = job.collect(workers)
    check_alike(results)
    assert [result["rank"] for result in results] == [0, 1]
    assert [(result["calls"], result["resets"], result["sizes"]) for result in results] == [(1, [], [2] * 5)] * 2


@pytest.mark.parametrize(("victim", "commit_every", "commits_per_step"), [(0, 1, 1), (1, 1, 2), (0, 3, 1), (2, 3, 1)])
def test_training_continues_after_a_worker_is_killed(
    make_job: Callable[..., ElasticJob], victim: int, commit_every: int, commits_per_step: int, tmp_path: Path
) -> None:
    job = make_job()
    workers = job.add(3)
    begun = tmp_path / "begun"
    how = {"commit_every": commit_every, "commits_per_step": commits_per_step}
    job.start(train, 60, pause=0.01, most=2, begun=str(begun), **how)
    wait_until(begun.exists)
    time.sleep(0.2)
    job.kill(workers[victim])
    results = job.collect([worker for worker in workers if worker != workers[victim]])
    check_alike(results)
    assert all(60 <= result["step"] == len(result["sizes"]) < 2000 for result in results)
    assert all(result["resets"] == [2] for result in results)
    assert sorted(set(results[0]["sizes"])) in ([2], [2, 3])


def test_a_newcomer_gets_the_state(make_job: Callable[..., ElasticJob], tmp_path: Path) -> None:
    job = make_job()
    first = job.add(2)
    begun = tmp_path / "begun"
    job.start(train, 20, pause=0.01, sizes=2, begun=str(begun))
    wait_until(begun.exists)
    (newcomer,) = job.add(1)
    job.start(train, 20, pause=0.01, sizes=2, workers=[newcomer])
    results = job.collect([*first, newcomer])
    check_alike(results)
    assert results[0]["resets"] == [3] and results[2]["resets"] == []
    assert set(results[2]["sizes"]) == {2, 3} and len(results[2]["sizes"]) == results[0]["step"]


def test_training_continues_after_a_worker_leaves(make_job: Callable[..., ElasticJob], tmp_path: Path) -> None:
    job = make_job()
    workers = job.add(3)
    begun = tmp_path / "begun"
    job.start(train, 20, pause=0.01, most=2, begun=str(begun))
    wait_until(begun.exists)
    job.tell(job.service.drain, [workers[0]], "it is to leave")
    results = job.collect(workers[1:])
    with pytest.raises(WorkerGone):
        job.workers[workers[0]].receive()
    check_alike(results)
    assert all(result["resets"] == [2] for result in results)
    assert set(results[0]["sizes"]) == {2, 3}


def test_workers_leave_one_after_the_other(make_job: Callable[..., ElasticJob], tmp_path: Path) -> None:
    job = make_job()
    workers = job.add(4)
    begun = tmp_path / "begun"
    job.start(train, 120, pause=0.01, most=1, begun=str(begun))
    wait_until(begun.exists)
    for victim in (0, 3, 1):
        time.sleep(0.3)
        job.kill(workers[victim])
    (result,) = job.collect([workers[2]])
    assert 120 <= result["step"] == len(result["sizes"]) < 2000
    assert result["resets"][-1] == 1


def train_twice(pause: float, in_second: str) -> dict[str, Any]:
    """Train five steps or more until two are left, and then others until there has been a world of three.

    Once two are at these others, there is a file `in_second`.
    """
    from pathlib import Path

    import torch

    import farandole.torch as hvd

    hvd.init()
    called = []

    def phase(name: str, is_over: Callable[[Any], bool]) -> Any:
        state = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, step=0, sizes=[], own=hvd.rank())

        @hvd.elastic.run
        def run(state: Any) -> str:
            called.append(name)
            while not is_over(state):
                state.own += hvd.broadcast(torch.ones(1), 0).item()  # Counted, as it has no name.
                time.sleep(pause)
                if name == "second" and hvd.size() == 2:
                    Path(in_second).touch()
                state.step += 1
                state.sizes.append(hvd.size())
                state.commit()
            return name

        return run(state), state.step, state.sizes, state.own

    # Nothing makes the broadcast between the two again: the worker that is to be killed in the first one has to be dead
    # by then.
    first = phase("first", lambda state: state.step >= 5 and hvd.size() == 2)
    between = hvd.broadcast(torch.full((1,), float(hvd.rank())), 0).item()
    second = phase("second", lambda state: state.step == 2000 or 3 in state.sizes[:-1])
    return {"first": first, "between": between, "second": second, "called": sorted(set(called))}


def test_a_newcomer_joins_the_second_training(make_job: Callable[..., ElasticJob], tmp_path: Path) -> None:
    job = make_job()
    workers = job.add(3)
    in_second = tmp_path / "second"
    job.start(train_twice, 0.02, str(in_second))
    wait_until(lambda: len(job.changes) == 1)
    # What follows is in later worlds: that there was a state does not say that the second training has begun.
    job.kill(workers[0])
    wait_until(in_second.exists)
    (newcomer,) = job.add(1)
    job.start(train_twice, 0.02, str(in_second), workers=[newcomer])
    *others, new = job.collect([*workers[1:], newcomer])
    assert all(other["second"] == new["second"] for other in others)
    assert set(new["second"][2]) == {2, 3} and new["called"] == ["second"]
    assert others[0]["first"] == others[1]["first"] and others[0]["first"][0] == "first"
    assert others[0]["first"][1] == len(others[0]["first"][2]) >= 5
    assert new["first"] == (None, 0, [], 2)
    assert [each["between"] for each in (*others, new)] == [0.0, 0.0, 2.0]


def train_with_gradients_under_way(
    steps: int, *, with_optimizer: bool, passes: int, dies_at: int = -1, fewest: int = 1
) -> dict[str, Any]:
    """Train, until enough are there, so that worlds end when gradients are on their way, or half accumulated."""
    import os
    import signal

    import torch

    import farandole.torch as hvd

    hvd.init()
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), backward_passes_per_step=passes)
    state = hvd.elastic.TorchState(model, optimizer if with_optimizer else None, step=0, gradients=[])

    @hvd.elastic.run
    def run(state: Any) -> None:
        while state.step < steps or hvd.size() < fewest:
            optimizer.zero_grad()
            for number in range(passes):
                model(torch.full((4, 64), 1.0 + number)).mean().backward()
                if state.step == dies_at and number == passes - 1 and os.environ["FARANDOLE_WORKER"] == "1":
                    os.kill(os.getpid(), signal.SIGKILL)
                hvd.allreduce(torch.ones(1), name="between")
                state.check_host_updates()
            optimizer.step()
            state.gradients.append(model[0].weight.grad.sum().item())
            state.step += 1
            state.commit()

    run(state)
    return {"step": state.step, "gradients": state.gradients, "weights": model[0].weight.tolist()}


@pytest.mark.parametrize("with_optimizer", [True, False])
@pytest.mark.parametrize("passes", [1, 2])
def test_gradients_of_a_broken_step_are_forgotten(
    make_job: Callable[..., ElasticJob], with_optimizer: bool, passes: int
) -> None:
    job = make_job()
    workers = job.add(3)
    job.start(train_with_gradients_under_way, 8, with_optimizer=with_optimizer, passes=passes, dies_at=3)
    survivors = job.collect([workers[0], workers[2]])
    (alone,) = make_alone(make_job, with_optimizer, passes)
    for result in survivors:
        assert result["step"] == 8
        assert result["gradients"] == pytest.approx(alone["gradients"], rel=1e-4)
    assert survivors[0]["weights"] == survivors[1]["weights"]


def make_alone(make_job: Callable[..., ElasticJob], with_optimizer: bool, passes: int) -> list[dict[str, Any]]:
    """Return what an undisturbed worker comes to: all have the same data, so it is what several come to."""
    job = make_job()
    workers = job.add(1)
    job.start(train_with_gradients_under_way, 8, with_optimizer=with_optimizer, passes=passes)
    return job.collect(workers)


@pytest.mark.parametrize("with_optimizer", [True, False])
def test_gradients_that_were_half_accumulated_are_forgotten(
    make_job: Callable[..., ElasticJob], with_optimizer: bool
) -> None:
    job = make_job()
    workers = job.add(2)
    how = {"with_optimizer": with_optimizer, "passes": 2, "fewest": 5}
    job.start(train_with_gradients_under_way, 150, **how)
    wait_until(lambda: len(job.changes) == 1)
    for _ in range(3):
        newcomers = job.add(1)
        job.start(train_with_gradients_under_way, 150, workers=newcomers, **how)
        workers += newcomers
        time.sleep(0.1)
    results = job.collect(workers)
    assert all(result["weights"] == results[0]["weights"] for result in results)
    assert 150 <= results[0]["step"]

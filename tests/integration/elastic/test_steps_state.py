"""The loop of steps: where the state of newcomers comes from, and what happens when it is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from elastic_worlds import ElasticJob
from worlds import Nursery, WorkerFailed, World, wait_until


def grow(go: str) -> list[Any]:
    """Train, beside a large model with all sorts of state, until the world has two workers; return the whole state."""
    import hashlib
    from pathlib import Path

    import torch

    import farandole.torch as hvd
    from farandole.worker.core.basics import current

    torch.set_num_threads(1)
    hvd.init()
    worker = current().settings.rank
    torch.manual_seed(worker)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 1))
    large = torch.nn.Linear(1_500_000, 2)
    large.register_buffer("nothing", torch.empty(0, 3))
    large.register_buffer("number", torch.tensor(worker, dtype=torch.int16))
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.01), model.named_parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    loader = hvd.elastic.ElasticLoader(torch.ones(1000, 4), batch_size=2)
    things = {"model": model, "large": large, "optimizer": optimizer, "schedule": schedule}
    loop = hvd.elastic.steps(loader, epochs=100, **things)
    for x in loop:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        if hvd.size() == 2:
            loop.stop()
        optimizer.step()
        schedule.step()
        Path(go).touch()

    def digest(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.dtype, value.shape, hashlib.sha256(value.numpy().tobytes()).hexdigest()
        if isinstance(value, dict):
            return {key: digest(each) for key, each in value.items()}
        return value

    return [digest(thing.state_dict()) for thing in things.values()]


def test_a_newcomer_gets_the_whole_state_bit_by_bit(make_job: Callable[..., ElasticJob], tmp_path: Any) -> None:
    job = make_job()
    first = job.add()
    job.start(grow, str(tmp_path / "go"))
    wait_until(lambda: (tmp_path / "go").exists())
    second = job.add()
    job.start(grow, str(tmp_path / "go"), workers=second)
    one, other = job.collect([*first, *second])
    assert repr(one) == repr(other)


def lose_state(directory: str, checkpoints: bool) -> int:
    """Train; the worker that holds the state dies while a newcomer waits. Return with which step this one began."""
    import time
    from pathlib import Path

    import torch

    import farandole.torch as hvd
    from farandole.torch.elastic.checkpoint import Checkpoint
    from farandole.worker.core.basics import current

    hvd.init()
    first = current().settings.rank == 0
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    loader = hvd.elastic.ElasticLoader(torch.ones(40, 2), batch_size=2)
    checkpoint = Checkpoint(directory, every_steps=1, wait_if_busy=True) if checkpoints else None
    loop = hvd.elastic.steps(loader, checkpoint=checkpoint, model=model, optimizer=optimizer)
    begun = None
    for x in loop:
        begun = loop.step if begun is None else begun
        optimizer.zero_grad()
        model(x).mean().backward()
        if first and loop.step == 5:
            Path(directory, "go").touch()
            while not Path(directory, "die").exists():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
    assert begun is not None
    return begun


@pytest.mark.parametrize("checkpoints", [False, True])
def test_a_state_that_is_lost_comes_from_a_checkpoint_or_not_at_all(
    checkpoints: bool, make_job: Callable[..., ElasticJob], tmp_path: Any
) -> None:
    job = make_job({"FARANDOLE_RESUME": "auto"})
    job.add()
    job.start(lose_state, str(tmp_path), checkpoints)
    wait_until(lambda: (tmp_path / "go").exists())
    second = job.add()
    job.start(lose_state, str(tmp_path), checkpoints, workers=second)
    wait_until(lambda: len(job.service.newcomers) == 1)
    (tmp_path / "die").touch()
    if checkpoints:
        # That of the last step may not have been complete.
        assert job.collect(second)[0] in (4, 5)
    else:
        with pytest.raises(WorkerFailed, match=r"StateLostError.*--checkpoint-dir"):
            job.collect(second)


def train_without_the_first() -> int:
    """Train; worker 0 dies as soon as it has told the roster that it holds the state, and others know of none yet."""
    import time

    import torch

    import farandole.torch as hvd
    from farandole.base.wire.roster_client import RosterClient
    from farandole.errors import WorkerLostError
    from farandole.worker.core.session import Session

    torch.set_num_threads(1)
    worker = int(os.environ["FARANDOLE_WORKER"])
    exchange, report = Session.exchange, RosterClient.report_state

    def report_and_die(roster: Any, training: int = 0) -> None:
        report(roster, training)
        if worker == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def exchange_too_late(session: Any, name: str, payload: bytes) -> list[bytes]:
        result = exchange(session, name, payload)
        if name == "elastic.progress" and worker > 0 and session.world.generation == 1:
            while session.engine.cause() is None:
                time.sleep(0.01)
            raise WorkerLostError(str(session.engine.cause()))
        return result

    RosterClient.report_state, Session.exchange = report_and_die, exchange_too_late  # type: ignore[method-assign]
    hvd.init()
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    loader = hvd.elastic.ElasticLoader(torch.ones(20, 2), batch_size=2)
    loop = hvd.elastic.steps(loader, model=model, optimizer=optimizer)
    for x in loop:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
    hvd.shutdown()
    return loop.step


def test_losing_a_state_before_its_first_step_is_not_an_error(make_job: Callable[..., ElasticJob]) -> None:
    job = make_job()
    workers = job.add(3)
    job.start(train_without_the_first)
    assert job.collect(workers[1:]) == [5, 5]


def train_to_the_end() -> tuple[int, int]:
    """Train for less time than lies between two checkpoints; return the number of steps taken here and in all."""
    import torch

    import farandole.torch as hvd

    hvd.init()
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    loader = hvd.elastic.ElasticLoader(torch.ones(8, 2), batch_size=2)
    loop = hvd.elastic.steps(loader, epochs=2, model=model, optimizer=optimizer)
    steps = []
    for x in loop:
        steps.append(loop.step)
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
    hvd.shutdown()
    return len(steps), loop.step


@pytest.mark.parametrize("size", [1, 2])
def test_training_that_ends_before_a_checkpoint_is_due_writes_one_at_its_end(
    nursery: Nursery, tmp_path: Path, size: int
) -> None:
    settings = {"FARANDOLE_RESUME": "auto", "FARANDOLE_CHECKPOINT_DIR": str(tmp_path)}
    taken = []
    for _ in range(2):
        world = World(nursery, size, settings)
        try:
            taken.append(world.run(train_to_the_end))
        finally:
            world.close()
        assert [path.name for path in tmp_path.glob("step-*")] == [f"step-{8 // size:08d}"]
    assert taken == [[(8 // size, 8 // size)] * size, [(0, 8 // size)] * size], "the second one had nothing left to do"

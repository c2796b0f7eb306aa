"""What workers tell the launcher of how they get on, when it asks for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from worlds import World, wait_until

OpenWorld = Callable[..., World]


def train(steps: int, slow_rank: int, op: str) -> int:
    """Take steps with a wrapped optimizer, one rank slower than the others; return how many threads report."""
    import threading
    import time

    import torch

    import farandole.torch as hvd

    hvd.init()
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=getattr(hvd, op))
    for _ in range(steps):
        if hvd.rank() == slow_rank:
            time.sleep(0.1)
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    return sum(thread.name == "farandole-progress" for thread in threading.enumerate())


def shutdown() -> int:
    import threading

    import farandole.torch as hvd

    hvd.shutdown()
    return sum(thread.name == "farandole-progress" for thread in threading.enumerate())


@pytest.mark.parametrize("op", ["Average", "Adasum"])
def test_steps_and_waiting_are_told(open_world: OpenWorld, op: str) -> None:
    world = open_world(2, FARANDOLE_PROGRESS="0.05")
    assert world.run(train, 5, 1, op) == [1, 1]
    wait_until(lambda: {(rank, told.steps) for rank, told in world.progress()} >= {(0, 5), (1, 5)})

    def quick_has_waited() -> bool:
        quick, slow = (max(told.waited for rank, told in world.progress() if rank == each) for each in range(2))
        if quick <= slow + 0.2:
            # A busy machine may hold up the quick one for longer than the slow one sleeps, but not again and again.
            world.run(train, 5, 1, op)
            return False
        return True

    wait_until(quick_has_waited)
    assert world.run(shutdown) == [0, 0]


def test_nothing_is_told_unasked(open_world: OpenWorld) -> None:
    world = open_world(2)
    assert world.run(train, 2, 1, "Average") == [0, 0]
    assert world.progress() == []


def count() -> tuple[int, int]:
    import farandole
    import farandole.torch as hvd
    from farandole.worker.core.basics import current

    farandole.count_step()
    hvd.init()
    farandole.count_step()
    farandole.count_step()
    return hvd.rank(), current().steps


def test_scripts_count_steps_of_their_own(open_world: OpenWorld) -> None:
    assert open_world(2).run(count) == [(0, 2), (1, 2)]

"""TensorFlow's loop of steps in worlds of real processes that lose workers, against one process that takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from elastic_worlds import ElasticJob
from tensorflow_trainings import check, train
from worlds import Nursery, Worker, World, ship

pytest.importorskip("tensorflow", reason="TensorFlow is not installed")


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """Return what forks workers that have TensorFlow."""
    nursery = Nursery("tensorflow")
    first = nursery.fork({})
    first.send(int, ())
    first.receive(100)
    first.close()
    yield nursery
    nursery.close()


@pytest.fixture(scope="module")
def alone(nursery: Nursery) -> Iterator[Worker]:
    """Return a process that takes steps by itself."""
    worker = nursery.fork({})
    ship(train)
    yield worker
    worker.close()


def run(job: ElasticJob, options: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Run a training to its end, and return what the workers say that were not to die."""
    workers = job.add(count)
    job.start(train, options)
    return job.collect_survivors(workers, options.get("deaths", ()))


@pytest.mark.parametrize("size", [1, 3])
def test_an_undisturbed_training_is_that_of_a_fixed_job_bit_by_bit(
    nursery: Nursery, make_job: Callable[..., ElasticJob], alone: Worker, size: int
) -> None:
    options = {"optimizer": "adam", "calls": True}
    elastic = run(make_job(), options, size)
    check(elastic, options, alone)
    world = World(nursery, size)
    try:
        # Here nobody gives the state to the others, so they begin alike.
        fixed = world.run(train, options | {"strangers": False})
    finally:
        world.close()
    check([*fixed, *elastic], options, alone)


KINDS: dict[str, dict[str, Any]] = {
    "eager, dies before the step": {"function": False, "deaths": {1: (1, "begin")}},
    "with gradients": {"optimizer": "adam", "calls": True, "deaths": {0: (1, "backward"), 2: (3, "after step")}},
    "a pipeline and few samples": {"pipeline": True, "batch": {"global_batch_size": 2}, "deaths": {1: (2, "backward")}},
    "samples of each worker": {"batch": {"batch_size": 2}, "pipeline": True, "deaths": {2: (1, "backward")}},
}


@pytest.mark.parametrize("name", KINDS)
def test_trainings_survive_workers(name: str, make_job: Callable[..., ElasticJob], alone: Worker) -> None:
    options = KINDS[name]
    check(run(make_job(), options, 4), options, alone)

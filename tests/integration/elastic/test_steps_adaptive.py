"""AdaptiveBatch in loops of steps, against one process that takes the same steps with the same learning rates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from elastic_worlds import ElasticJob
from step_trainings import check, collect, run, train
from worlds import Nursery, World, wait_until

ADAPTIVE = {"min": 4, "max": 11, "most_in_pass": 3, "every": 2, "rate": "linear"}
OPTIONS = {"adaptive": ADAPTIVE, "epochs": 6, "batch": {"global_batch_size": 6}}


def sizes(result: dict[str, Any]) -> list[int]:
    return [len(used) for _, used in sorted(result["used"].items())]


def check_adapted(results: list[dict[str, Any]], options: dict[str, Any]) -> None:
    check(results, options, rates=results[0]["rates"])
    assert len({result["adaptation"] for result in results}) == 1
    assert results[0]["adaptation"].measured > 0


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_batch_adapts_and_every_sample_counts_once(
    nursery: Nursery, make_job: Callable[..., ElasticJob], size: int
) -> None:
    elastic = run(make_job(), OPTIONS, size)
    check_adapted(elastic, OPTIONS)
    # It begins with the smallest batch, and the noise of this problem asks for more.
    assert sizes(elastic[0])[:4] == [4] * 4 and max(sizes(elastic[0])) > 4
    # The learning rate follows the batch.
    rates = elastic[0]["rates"]
    assert rates[0] == pytest.approx(0.05) and max(rates.values()) > 0.05
    # One worker takes its samples in passes of 3 at most.
    assert elastic[0]["passes"] > elastic[0]["step"] if size == 1 else elastic[0]["passes"] >= elastic[0]["step"]
    world = World(nursery, size)
    try:
        fixed = world.run(train, OPTIONS | {"strangers": False})
    finally:
        world.close()
    check_adapted(fixed, OPTIONS)
    assert sizes(fixed[0]) == sizes(elastic[0])


@pytest.mark.parametrize("deaths", [{}, {0: (5, "after step")}])
def test_a_batch_that_a_scheduler_has_chosen_is_followed(
    make_job: Callable[..., ElasticJob], deaths: dict[int, tuple[int, str]]
) -> None:
    job = make_job()
    job.tell(job.service.schedule_batch, 5)  # The noise asks for the largest one.
    options = OPTIONS | {"deaths": deaths}
    results = run(job, options, 2)
    check_adapted(results, options)
    # It is heard with the first measurement, in every second step.
    assert sizes(results[0])[:2] == [4, 4] and {*sizes(results[0])[2:8]} <= {5, 2, 4}
    assert results[0]["adaptation"].batch == 5
    assert max(results[0]["rates"].values()) == pytest.approx(0.05 * 5 / 4)


# In step 5 the ranks tell each other what they have measured: those that are left do so in the next world.
@pytest.mark.parametrize(("step", "phase"), [(4, "backward"), (5, "before step"), (5, "after step"), (6, "begin")])
def test_the_adapted_batch_survives_the_loss_of_workers(
    make_job: Callable[..., ElasticJob], phase: str, step: int
) -> None:
    options = OPTIONS | {"deaths": {2: (step, phase)}}
    check_adapted(run(make_job(), options), options)


def test_a_world_shrinks_to_one_and_grows_again(make_job: Callable[..., ElasticJob]) -> None:
    options = OPTIONS | {"deaths": {0: (5, "after step"), 1: (7, "backward")}, "waits_at": 9, "until": 3}
    job = make_job()
    workers = job.add(3)
    job.start(train, options)
    wait_until(lambda: job.service.world == (2,))
    new = job.add(2)
    job.start(train, options, workers=new)
    results = collect(job, [*workers, *new], options)
    assert {result["size"] for result in results} == {3}
    check_adapted(results, options)


def begin_and_resume(directory: str, stops: bool) -> tuple[Any, Any, int]:
    """Train from the last checkpoint, if there is one; return the adaptation at the beginning and at the end."""
    import torch

    import farandole.torch as hvd

    hvd.init()
    torch.manual_seed(3)
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    loader = hvd.elastic.ElasticLoader(torch.randn(200, 2), global_batch_size=1)
    checkpoint = hvd.elastic.Checkpoint(directory, every_steps=1, wait_if_busy=True, say=lambda level, line: None)
    checkpoint.resume = not stops
    loop = hvd.elastic.steps(
        loader,
        batches=hvd.elastic.AdaptiveBatch(4, 64, every=1),
        checkpoint=checkpoint,
        model=model,
        optimizer=optimizer,
    )
    first = None
    for x in loop:
        first = first or (loop._adaptation.value, optimizer.param_groups[0]["lr"])
        optimizer.zero_grad()
        (model(x) - 10 * torch.randn(len(x), 1)).square().mean().backward()
        optimizer.step()
        if stops and loop.step == 6:
            loop.stop()
    hvd.shutdown()
    return first, (loop._adaptation.value, optimizer.param_groups[0]["lr"]), loop.step


def test_a_checkpoint_contains_the_adapted_batch(nursery: Nursery, tmp_path: Path) -> None:
    ends = []
    for stops in (True, False):
        world = World(nursery, 2)
        try:
            ends.append(world.run(begin_and_resume, str(tmp_path), stops)[0])
        finally:
            world.close()
    (_, (left, _), _), ((found, _), _, steps) = ends
    assert left.measured > 3 and left.batch > 4
    assert found.measured == left.measured and found.noise == left.noise and found.batch == left.batch
    assert steps > 8

"""The loop of steps: wrong use, and whole programs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from elastic_worlds import ElasticJob
from step_trainings import write_down_steps


def misuse(which: str) -> str:
    """Call `steps` with wrong arguments; return the error."""
    import torch

    import farandole.torch as hvd

    hvd.init()
    model = torch.nn.Linear(2, 1)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    if which == "adasum":
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=hvd.Adasum)
    if which == "rounds":
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), backward_passes_per_step=2)
    things: dict[str, Any] = {"model": model, "optimizer": optimizer}
    if which == "stateless":
        things = {"model": model, "counter": 7}
    loader: Any = hvd.elastic.ElasticLoader(torch.ones(40, 2), batch_size=2)
    if which == "sampler":
        things = {"model": model}
        loader = torch.utils.data.DataLoader(
            torch.ones(4, 2), sampler=torch.utils.data.WeightedRandomSampler(torch.ones(4), 4)
        )
    try:
        for x in hvd.elastic.steps(loader, **things):
            model(x).mean().backward()
    except ValueError as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize(
    ("which", "told"),
    [
        ("plain", "plain SGD; pass hvd.DistributedOptimizer"),
        ("rounds", "made no optimizer.step() with them. A round of this loop is a step"),
        ("stateless", "counter=7 has no state_dict"),
        ("sampler", "Pass hvd.elastic.ElasticLoader"),
    ],
)
def test_misuse_is_reported_at_once(which: str, told: str, make_job: Callable[..., ElasticJob]) -> None:
    job = make_job()
    workers = job.add()
    job.start(misuse, which)
    (said,) = job.collect(workers)
    assert told in said


# --- whole programs --------------------------------------------------------------------------------------------------


def train_two(options: dict[str, Any]) -> list[Any]:
    """Train two models with an optimizer each, as adversaries do, some workers without samples. Run by a worker."""

    import torch

    import farandole.torch as hvd
    from farandole.worker.core.basics import current

    torch.set_num_threads(1)
    hvd.init()
    worker = current().settings.rank
    torch.manual_seed(3)
    models = [torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)]
    maker, judge = (
        hvd.DistributedOptimizer(
            torch.optim.Adam(model.parameters(), lr=0.01),
            [(f"{number}.{name}", parameter) for name, parameter in model.named_parameters()],
        )
        for number, model in enumerate(models)
    )
    loader = hvd.elastic.ElasticLoader(torch.randn(22, 3), **options["batch"])
    loop = hvd.elastic.steps(loader, epochs=2, first=models[0], second=models[1], maker=maker, judge=judge)
    for x in loop:
        judge.zero_grad()
        models[1](models[0](x).detach()).mean().backward()
        if options["deaths"].get(worker) == loop.step:
            os.kill(os.getpid(), signal.SIGKILL)
        judge.step()
        if loop.step % 2 == 0:
            maker.zero_grad()
            models[1](models[0](x)).mean().backward()
            judge.zero_grad() if not judge._pending else judge.synchronize()
            maker.step()
    return [loop.step, *(parameter.tolist() for model in models for parameter in model.parameters())]


@pytest.mark.parametrize("batch", [{"global_batch_size": 6}, {"global_batch_size": 2}])
def test_two_optimizers_in_one_loop_survive_workers(batch: dict[str, int], make_job: Callable[..., ElasticJob]) -> None:
    job = make_job()
    workers = job.add(4)
    job.start(train_two, {"batch": batch, "deaths": {1: 1, 2: 3}})
    results = job.collect([0, 3])
    assert results[0] == results[1]
    assert len(workers) == 4


def read_stream(options: dict[str, Any]) -> list[Any]:
    """Train on a stream, through a DataLoader; return the numbers that were used, as all know. Run by a worker."""

    import torch

    import farandole.torch as hvd
    from farandole.worker.core.basics import current

    class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            return iter([torch.tensor([float(number)]) for number in range(options["samples"])])

    torch.set_num_threads(1)
    hvd.init()
    model = torch.nn.Linear(1, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.001), model.named_parameters())
    dataset: Any = Stream() if options["stream"] else torch.arange(float(options["samples"]))[:, None]
    loader = torch.utils.data.DataLoader(dataset, batch_size=2, shuffle=not options["stream"] or None)
    loop = hvd.elastic.steps(loader, model=model, optimizer=optimizer)
    used: dict[int, Any] = {}
    write_down_steps(loop, used, {}, optimizer)
    for x in loop:
        if current().settings.rank == 1 and loop.step == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
        hvd.allreduce(loss.detach())
    return sorted(index for indices in used.values() for index in indices)


@pytest.mark.parametrize("samples", [17, 1])
@pytest.mark.parametrize("stream", [False, True])
def test_a_dataloader_is_shared_out(stream: bool, samples: int, make_job: Callable[..., ElasticJob]) -> None:
    job = make_job()
    job.add(3)
    job.start(read_stream, {"stream": stream, "samples": samples})
    assert job.collect([0, 2]) == [list(range(samples))] * 2

"""The loop of steps in worlds of real processes that lose workers, against one process that takes the same steps."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from elastic_worlds import ElasticJob
from fake_gpu_device import DEVICE, FakeGpu
from step_trainings import check, collect, run, train
from worlds import Nursery, WorkerFailed, World, wait_until


@pytest.mark.parametrize("size", [1, 3])
def test_an_undisturbed_training_is_that_of_a_fixed_job_bit_by_bit(
    nursery: Nursery, make_job: Callable[..., ElasticJob], size: int
) -> None:
    options = {"optimizer": "adam", "calls": ("allreduce",)}
    elastic = run(make_job(), options, size)
    check(elastic, options)
    world = World(nursery, size)
    try:
        # Here nobody gives the state to the others, so they begin alike.
        fixed = world.run(train, options | {"strangers": False})
    finally:
        world.close()
    check(fixed, options)
    assert all(map(torch.equal, elastic[0]["parameters"], fixed[0]["parameters"]))


def reduce_among_some() -> tuple[int, float]:
    """Train in a loop whose optimizer reduces over two ranks of three. Run by a worker."""
    import torch

    import farandole.torch as hvd

    pair = hvd.ProcessSet([0, 1])
    hvd.init(process_sets=[pair])
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("weight", weight)], process_set=pair)
    loader = hvd.elastic.ElasticLoader(range(12), global_batch_size=3, shuffle=False)
    loop = hvd.elastic.steps(loader, optimizer=optimizer)
    for (number,) in loop:
        optimizer.zero_grad()
        (weight * float(number)).sum().backward()
        optimizer.step()
    hvd.shutdown()
    return loop.step, float(weight)


def test_an_optimizer_of_some_ranks_in_a_fixed_world(nursery: Nursery) -> None:
    world = World(nursery, 3)
    try:
        # Samples 0, 3, 6 and 9 are rank 0's, and so on.
        assert world.run(reduce_among_some) == [(4, -20.0), (4, -20.0), (4, -26.0)]
    finally:
        world.close()


def test_a_loop_runs_alone_without_a_launcher(nursery: Nursery) -> None:
    worker = nursery.fork({})
    try:
        from worlds import ship

        ship(train)
        worker.send(train, ({},))
        check([worker.receive()], {})
    finally:
        worker.close()


KINDS = {
    "few samples": {"batch": {"global_batch_size": 2}},
    "few samples and a schedule": {"batch": {"global_batch_size": 2}, "schedule": True},
    "few samples and calls": {"batch": {"global_batch_size": 2}, "calls": ("allreduce", "allgather")},
    "samples of each worker": {"batch": {"batch_size": 2}},
    "sparse": {"model": "sparse"},
    "sparse as dense": {"model": "sparse", "sparse_as_dense": True},
    "groups": {"groups": 2},
    "clipped": {"clip": True},
    "accumulated": {"backward_passes_per_step": 2},
    "accumulated of few samples": {"backward_passes_per_step": 3, "batch": {"global_batch_size": 5}, "groups": 1},
    "accumulated in place": {"backward_passes_per_step": 2, "zeroes in place": True, "optimizer": "momentum"},
    "schedule": {"schedule": True, "optimizer": "momentum"},
    "reading processes": {"batch": {"global_batch_size": 6, "num_workers": 1}},
}


@pytest.mark.parametrize("name", KINDS)
def test_all_kinds_of_trainings_survive_a_worker(name: str, make_job: Callable[..., ElasticJob]) -> None:
    options = {**KINDS[name], "deaths": {1: (2, "backward")}}
    check(run(make_job(), options, 4), options)


def on_one_gpu(fake_gpu: FakeGpu, way: str, time: str = "random") -> dict[str, str]:
    """Return the variables of workers that share a GPU; `way` is by what they reduce, as FARANDOLE_GPU has it."""
    return {**fake_gpu.environment(time=time), "FARANDOLE_GPU": way, "NCCL_MULTI_RANK_GPU_ENABLE": "1"}


@pytest.mark.parametrize(
    ("time", "gpu"), [("lazy", "staged"), ("random", "staged"), ("random", "auto"), ("lazy", "nccl")]
)
def test_a_training_on_a_gpu_survives_workers(
    fake_gpu: FakeGpu, time: str, gpu: str, make_job: Callable[..., ElasticJob]
) -> None:
    """All of them have the one GPU, of which a worker sees its own streams only."""
    options = {"device": DEVICE, "optimizer": "momentum", "deaths": {1: (2, "backward"), 3: (4, "before step")}}
    check(run(make_job(on_one_gpu(fake_gpu, gpu, time)), options, 4), options)


@pytest.mark.parametrize(
    ("fault", "victims"), [("die", {1}), ("sticky", {1}), ("async_error", set())], ids=lambda value: str(value)
)
def test_a_step_that_breaks_in_a_collective_of_nccl_is_finished_with_kept_gradients(
    fake_gpu: FakeGpu, fault: str, victims: set[int], make_job: Callable[..., ElasticJob]
) -> None:
    """What NCCL was about to reduce is destroyed by the abort, as it is where a buffer was half reduced.

    The error that a worker reports is nobody's fault: all of them finish the step.
    """
    options = {
        "device": DEVICE,
        "optimizer": "adam",
        "NCCL faults": {1: (3, fault)},
        "deaths": dict.fromkeys(victims),
    }
    job = make_job(on_one_gpu(fake_gpu, "nccl"))
    results = run(job, options, 3)
    check(results, options)
    assert all(result["aborts"] for result in results)
    assert len(job.changes[-1].workers) == 3 - len(victims)
    assert not job.evicted


@pytest.mark.parametrize("phase", ["begin", "reading", "backward", "before step", "after step"])
def test_a_repeated_step_is_the_mean_over_the_remaining_samples(
    phase: str, make_job: Callable[..., ElasticJob]
) -> None:
    options = {"optimizer": "adam", "calls": ("allreduce",), "deaths": {0: (1, phase), 2: (3, phase)}}
    check(run(make_job(), options, 4), options)


@pytest.mark.parametrize("kind", [{}, {"backward_passes_per_step": 2}, {"device": DEVICE}])
def test_without_kept_gradients_the_batch_is_given_out_again(
    kind: dict[str, Any], fake_gpu: FakeGpu, make_job: Callable[..., ElasticJob]
) -> None:
    options = {"optimizer": "momentum", "deaths": {1: (1, "before step"), 2: (4, "backward")}, **kind}
    variables = on_one_gpu(fake_gpu, "auto") if "device" in kind else {}
    check(run(make_job({"FARANDOLE_ELASTIC_KEEP_GRADIENTS": "0", **variables}), options, 4), options)


@pytest.mark.parametrize(("compression", "tolerance"), [("bf16", 0.01), ("int8", 0.05)])
def test_compressed_gradients_survive_workers(
    compression: str, tolerance: float, make_job: Callable[..., ElasticJob]
) -> None:
    options = {"model": "float", "compression": compression, "deaths": {1: (2, "before step")}}
    check(run(make_job(), options), options, tolerance)


CALLS = ("allreduce", "allreduce_", "grouped", "broadcast_", "allgather", "broadcast_object")


def test_calls_of_the_body_survive_workers(make_job: Callable[..., ElasticJob]) -> None:
    options = {"calls": CALLS, "deaths": {0: (1, "begin"), 2: (3, "before step"), 3: (5, "backward")}}
    check(run(make_job(), options, 5), options)


def test_a_stop_on_any_rank_stops_all(nursery: Nursery, make_job: Callable[..., ElasticJob]) -> None:
    options = {"stop": (1, 2)}
    assert [result["step"] for result in run(make_job(), options)] == [3, 3, 3]
    world = World(nursery, 2)
    try:
        assert [result["step"] for result in world.run(train, options)] == [3, 3]
    finally:
        world.close()


def test_a_stop_during_a_reduction_takes_effect_after_the_next_step(make_job: Callable[..., ElasticJob]) -> None:
    assert [result["step"] for result in run(make_job(), {"stop late": (1, 2)})] == [4, 4, 4]


# --- workers that lack what the others have --------------------------------------------------------------------------


LAGGING: dict[str, dict[str, Any]] = {
    "in places": {"optimizer": "adam"},
    "schedule": {"schedule": True, "optimizer": "momentum"},
    "sparse": {"model": "sparse"},
    "sparse as dense": {"model": "sparse", "sparse_as_dense": True},
    "compressed": {"model": "float", "compression": "bf16"},
    "clipped": {"clip": True},
    "accumulated in place": {"backward_passes_per_step": 2, "zeroes in place": True, "optimizer": "momentum"},
    "zeroed in place": {"zeroes in place": True},
    "changed unseen": {"optimizer": "old style"},
    "calls": {"calls": ("allreduce",)},
}


@pytest.mark.parametrize("step", [0, 1, 2, 4])
@pytest.mark.parametrize("name", LAGGING)
def test_a_worker_gets_missed_gradients_from_the_others(
    name: str, step: int, make_job: Callable[..., ElasticJob], tmp_path: Path
) -> None:
    lag = {"step": step, "lags": 1, "dies": 2, "got": str(tmp_path / "got")}
    options = {**LAGGING[name], "lag": lag, "deaths": {2: None}}
    results = run(make_job(), options, 3)
    assert [result["handed over"] for result in results] == [False, True]
    check(results, options, 0.01 if "compression" in options else 1e-9)
    # The dead worker's part is in the result.
    assert len(results[0]["used"][step]) == 6


@pytest.mark.parametrize("compression", ["none", "bf16"])
def test_a_worker_on_a_gpu_gets_missed_gradients_from_the_others(
    compression: str, fake_gpu: FakeGpu, make_job: Callable[..., ElasticJob], tmp_path: Path
) -> None:
    lag = {"step": 3, "lags": 1, "dies": 2, "got": str(tmp_path / "got")}
    options = {"device": DEVICE, "model": "float", "compression": compression, "lag": lag, "deaths": {2: None}}
    results = run(make_job(on_one_gpu(fake_gpu, "nccl")), options, 3)
    assert [result["handed over"] for result in results] == [False, True]
    check(results, options, 0.01)


def test_a_worker_that_keeps_no_gradients_gets_missed_ones_too(
    make_job: Callable[..., ElasticJob], tmp_path: Path
) -> None:
    lag = {"step": 2, "lags": 1, "dies": 2, "got": str(tmp_path / "got")}
    options = {"lag": lag, "deaths": {2: None}}
    results = run(make_job({"FARANDOLE_ELASTIC_KEEP_GRADIENTS": "0"}), options, 3)
    assert [result["handed over"] for result in results] == [False, True]
    check(results, options)


def test_a_worker_that_cannot_get_missed_gradients_leaves(make_job: Callable[..., ElasticJob], tmp_path: Path) -> None:
    lag = {"step": 3, "lags": 1, "dies": 2, "got": str(tmp_path / "got")}
    options = {"lag": lag, "deaths": {1: None, 2: None}, "changes": 3}
    job = make_job()
    job.add(3)
    job.start(train, options)
    with pytest.raises(WorkerFailed, match="cannot give it the result"):
        job.workers[1].receive()
    job.workers[1].kill(signal.SIGKILL)
    (result,) = job.collect([0])
    check([result], options)


# --- growing and shrinking -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", DEVICE])
def test_a_world_shrinks_to_one_and_grows_again(
    device: str, fake_gpu: FakeGpu, make_job: Callable[..., ElasticJob]
) -> None:
    from farandole.worker.elastic.batches import LinearScaling

    options = {
        "device": device,
        "optimizer": "adam",
        "batch": {"batch_size": 2},
        "rate": LinearScaling(),
        "epochs": 4,
        "deaths": {0: (1, "begin"), 1: (2, "backward")},
        "waits_at": 6,
        "until": 3,
    }
    job = make_job(on_one_gpu(fake_gpu, "auto") if device == DEVICE else None)
    workers = job.add(3)
    job.start(train, options)
    wait_until(lambda: job.service.world == (2,))
    new = job.add(2)
    job.start(train, options, workers=new)
    results = collect(job, [*workers, *new], options)
    assert {result["size"] for result in results} == {3}
    rates = results[0]["rates"]
    assert {round(rate / 0.01, 6) for rate in rates.values()} >= {1.0, round(1 / 3, 6)}
    check(results, options, rates=rates)

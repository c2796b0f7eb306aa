"""What farandole adds to Ray's own times on a cluster of this machine.

    PYTHONPATH=src .venv-frameworks/ray/bin/python -m benchmarks.on_ray [--rounds N] [--json FILE]

Each time of farandole's is printed beside the time that Ray takes alone for the same actors, measured in turn; steps
are compared with the same steps under `farandole.run`. It needs Ray and PyTorch: the environment that `make test-ray`
makes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle

from benchmarks import stepping
from benchmarks.stepping import (
    Median,
    ancestors,
    began,
    next_step,
    nothing,
    report,
    step_for_ever,
    steps,
    together,
    two_step,
    wait,
)

cloudpickle.register_pickle_by_value(stepping)

MEMORY = 100_000_000


def actors(count: int = 2) -> float:
    """Return the seconds in which Ray makes a placement group, and actors in it that answer."""
    import ray
    from ray.util import placement_group, remove_placement_group

    from farandole.ray.use_ray import in_group

    class Answers:
        def ready(self) -> None:
            pass

    began = time.monotonic()
    group = placement_group([{"CPU": 1}] * count)
    group.wait(100)
    made = [
        ray.remote(num_cpus=1)(Answers).options(scheduling_strategy=in_group(group, each)).remote()
        for each in range(count)
    ]
    ray.get([each.ready.remote() for each in made])
    seconds = time.monotonic() - began
    for each in made:
        ray.kill(each)
    remove_placement_group(group)
    return seconds


def executor() -> float:
    """Return the seconds of `RayExecutor.start` with 2 workers."""
    from farandole.ray import RayExecutor

    made = RayExecutor(RayExecutor.create_settings(), num_workers=2)
    began = time.monotonic()
    made.start()
    seconds = time.monotonic() - began
    made.shutdown()
    return seconds


def empty_job() -> float:
    """Return the seconds of `farandole.ray.run` with 2 workers that do nothing."""
    import farandole.ray

    began = time.monotonic()
    farandole.ray.run(nothing, min_workers=2, max_workers=2)
    return time.monotonic() - began


def steps_on_ray() -> tuple[float, float]:
    """Return the seconds of these sums on Ray, and those of them that rank 0 computed."""
    import farandole.ray

    both: tuple[float, float] = farandole.ray.run(steps, min_workers=2, max_workers=2)[0]
    return both


def steps_alone() -> tuple[float, float]:
    """Return the seconds of these sums under farandole's launcher on this machine, and those that rank 0 computed."""
    import farandole

    both: tuple[float, float] = farandole.run(steps, num_proc=2)[0]
    return both


def on_ray(folder: str) -> None:
    """Run an elastic job of one or two workers."""
    import farandole.ray

    farandole.ray.run(step_for_ever, [folder], min_workers=1, max_workers=2)


def in_ray_train(folder: str) -> None:
    """Let Ray Train run two workers, and replace one that is lost."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    from farandole.ray.train import FarandoleConfig

    DataParallelTrainer(
        lambda config: step_for_ever(config["folder"]),
        train_loop_config={"folder": folder},
        backend_config=FarandoleConfig(elastic=True),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=folder, failure_config=FailureConfig(max_failures=3)),
    ).fit()


def loss_of_worker() -> float:
    """Return the seconds from the kill of a worker to the next step of the other one."""
    with two_step(on_ray) as (folder, (victim, survivor)):
        killed = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        return next_step(folder, survivor, 1, killed)


def loss_of_node() -> float:
    """Return the seconds from the kill of a node to the next step of the worker on the other one, on its own."""
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": MEMORY}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = [_add_node(cluster) for _ in range(2)]
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        with two_step(on_ray) as (folder, workers):
            raylet = nodes[0].all_processes["raylet"][0].process.pid
            (victim,) = [pid for pid in workers if raylet in ancestors(pid)]
            (survivor,) = [pid for pid in workers if pid != victim]
            killed = time.monotonic()
            cluster.remove_node(nodes[0], allow_graceful=False)
            return next_step(folder, survivor, 1, killed)
    finally:
        ray.shutdown()
        cluster.shutdown()


def _add_node(cluster: Any) -> Any:
    """Add a node with a CPU; Ray gives one up that a busy machine has not started within 15 s."""
    for _ in range(4):
        with contextlib.suppress(Exception):
            return cluster.add_node(num_cpus=1, object_store_memory=MEMORY)
    return cluster.add_node(num_cpus=1, object_store_memory=MEMORY)


def replacement() -> float:
    """Return the seconds from the call of `init()` in a worker that Ray Train has started anew to its first step."""
    with two_step(in_ray_train) as (folder, workers):
        os.kill(workers[0], signal.SIGKILL)
        (newcomer,) = wait(lambda: set(together(folder)) - set(workers))
        return next_step(folder, newcomer, 2, 0.0) - began(folder, newcomer)[1]


def main() -> None:
    """Measure all in turn, several times."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    import ray

    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=MEMORY, log_to_driver=False)
    actors()  # Ray starts its first processes.
    ways: tuple[Callable[[], Any], ...] = (
        *(actors, executor, empty_job, steps_alone, steps_on_ray, loss_of_worker),
        replacement,
    )
    rounds: list[dict[str, Any]] = [{way.__name__: way() for way in ways} for _ in range(given.rounds)]
    ray.shutdown()
    for each in rounds:
        each["loss_of_node"] = loss_of_node()

    def table(median: Median) -> dict[str, float]:
        return {
            "2 actors of Ray's, in seconds": median(lambda each: each["actors"]),
            "RayExecutor.start of 2, beyond these": median(lambda each: each["executor"] - each["actors"]),
            "farandole.ray.run of an empty function, beyond these": median(
                lambda each: each["empty_job"] - each["actors"]
            ),
            "a killed worker, until the survivor's next step": median(lambda each: each["loss_of_worker"]),
            "a lost node, until the survivor's next step": median(lambda each: each["loss_of_node"]),
            "Ray Train: a replacement, from init() to its first step": median(lambda each: each["replacement"]),
            "time of steps on Ray, as a ratio to farandole.run": median(
                lambda each: each["steps_on_ray"][0] / each["steps_alone"][0]
            ),
            "processor time of these steps, as a ratio": median(
                lambda each: each["steps_on_ray"][1] / each["steps_alone"][1]
            ),
        }

    report(rounds, table, given.json)


if __name__ == "__main__":
    main()

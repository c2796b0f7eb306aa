"""What farandole adds to Ray's own times on a cluster of this machine.

    PYTHONPATH=src .venv-frameworks/ray/bin/python -m benchmarks.on_ray [--rounds N] [--json FILE]

Each time of farandole's is printed beside the time that Ray takes alone for the same actors, measured in turn; steps
are compared with the same steps under `farandole.run`. It needs Ray and PyTorch: the environment that `make test-ray`
makes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

STEPS = 2000
NUMBERS = 100_000
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


def nothing() -> None:
    """Do nothing."""


def empty_job() -> float:
    """Return the seconds of `farandole.ray.run` with 2 workers that do nothing."""
    import farandole.ray

    began = time.monotonic()
    farandole.ray.run(nothing, min_workers=2, max_workers=2)
    return time.monotonic() - began


def steps() -> tuple[float, float]:
    """Return the seconds of many sums over all workers, and this process's processor time of them. Run by a worker."""
    import numpy as np

    import farandole.numpy as hvd

    hvd.init()
    numbers = np.ones(NUMBERS, np.float32)
    hvd.allreduce(numbers, name="first")
    began, computed = time.monotonic(), time.process_time()
    for _ in range(STEPS):
        hvd.allreduce(numbers, name="numbers")
    return time.monotonic() - began, time.process_time() - computed


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


def step_for_ever(folder: str) -> None:
    """Record when `init()` is called and when each step ends, until the folder has a file `finish`. Run by a worker."""
    import torch

    import farandole.torch as hvd

    Path(folder, f"began.{os.getpid()}").write_text(str(time.monotonic()))
    hvd.init()
    state = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, steps=0)
    book = open(Path(folder, f"steps.{os.getpid()}"), "w", buffering=1)

    @hvd.elastic.run
    def loop(state: Any) -> None:
        while True:
            done = hvd.allreduce(torch.tensor([float(Path(folder, "finish").exists())]), op=hvd.Min, name="done")
            book.write(f"{time.monotonic()} {hvd.size()}\n")
            state.commit()
            if done[0]:
                return
            time.sleep(0.01)

    loop(state)


@contextlib.contextmanager
def stepping(run: Callable[[str], Any]) -> Iterator[tuple[Path, list[int]]]:
    """Let two workers step in a thread as long as the context lasts.

    Args:
        run: runs `step_for_ever` in a given folder.

    Yields:
        The folder, and the process ids of the workers, which step together.
    """
    with tempfile.TemporaryDirectory() as folder:
        job = threading.Thread(target=run, args=[folder])
        job.start()
        try:
            yield Path(folder), _wait(lambda: len(found := _together(Path(folder))) == 2 and found)
        finally:
            Path(folder, "finish").touch()
            job.join(120)


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
    with stepping(on_ray) as (folder, (victim, survivor)):
        killed = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        return _next_step(folder, survivor, 1, killed)


def loss_of_node() -> float:
    """Return the seconds from the kill of a node to the next step of the worker on the other one, on its own."""
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": MEMORY}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = [_add_node(cluster) for _ in range(2)]
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        with stepping(on_ray) as (folder, workers):
            raylet = nodes[0].all_processes["raylet"][0].process.pid
            (victim,) = [pid for pid in workers if raylet in _ancestors(pid)]
            (survivor,) = [pid for pid in workers if pid != victim]
            killed = time.monotonic()
            cluster.remove_node(nodes[0], allow_graceful=False)
            return _next_step(folder, survivor, 1, killed)
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
    with stepping(in_ray_train) as (folder, workers):
        os.kill(workers[0], signal.SIGKILL)
        (newcomer,) = _wait(lambda: set(_together(folder)) - set(workers))
        return _next_step(folder, newcomer, 2, 0.0) - float((folder / f"began.{newcomer}").read_text())


def _together(folder: Path) -> list[int]:
    """Return the process ids of workers that have made a step with another one."""
    return [int(each.suffix[1:]) for each in folder.glob("steps.*") if any(size == 2 for _, size in _read(each))]


def _next_step(folder: Path, worker: int, size: int, after: float) -> float:
    """Return how long after a time a worker has made its next step in a world of that size."""
    steps = folder / f"steps.{worker}"
    return float(_wait(lambda: [at for at, among in _read(steps) if at > after and among == size])[0]) - after


def _ancestors(pid: int) -> list[int]:
    found = []
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        found.append(pid)
    return found


def _read(file: Path) -> list[tuple[float, int]]:
    lines = [line.split() for line in file.read_text().split("\n")[:-1]]
    return [(float(at), int(size)) for at, size in lines]


def _wait(fact: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 120
    while not (found := fact()):
        if time.monotonic() > deadline:
            raise TimeoutError("nothing happens")
        time.sleep(0.005)
    return found


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

    def median(value: Callable[[dict[str, Any]], float]) -> float:
        return statistics.median(value(each) for each in rounds)

    results = {
        "2 actors of Ray's, in seconds": median(lambda each: each["actors"]),
        "RayExecutor.start of 2, beyond these": median(lambda each: each["executor"] - each["actors"]),
        "farandole.ray.run of an empty function, beyond these": median(lambda each: each["empty_job"] - each["actors"]),
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
    print(f"medians of {given.rounds} rounds; load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for name, value in results.items():
        print(f"  {name:60} {value:7.3f}")
    if given.json:
        given.json.write_text(json.dumps({"medians": results, "rounds": rounds}, indent=1))


if __name__ == "__main__":
    main()

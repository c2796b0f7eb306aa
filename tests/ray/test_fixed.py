"""`RayExecutor` of fixed size on a real cluster: what Horovod's users rely on."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.ray.conftest import SECONDS, until

import farandole.errors
from farandole.errors import SpecError
from farandole.ray import RayExecutor

SETTINGS = RayExecutor.create_settings(timeout_s=60, placement_group_timeout_s=60)


def place() -> tuple[int, int, int, float]:
    import farandole.numpy as hvd

    hvd.init()
    total = hvd.allreduce([float(hvd.rank())], op=hvd.Sum)
    return hvd.rank(), hvd.local_rank(), hvd.size(), float(total[0])


@pytest.mark.parametrize("request_", [{"num_workers": 4}, {"num_hosts": 1, "num_workers_per_host": 4}])
def test_four_workers_are_one_world_by_either_form(cluster: Any, request_: dict[str, int]) -> None:
    executor = RayExecutor(SETTINGS, **request_)
    executor.start(extra_env_vars={"MY_NUMBER": 7})
    assert executor.run(place) == [(rank, rank, 4, 6.0) for rank in range(4)]
    assert executor.run(place) == [(rank, rank, 4, 6.0) for rank in range(4)], "the same world again"
    names = ("HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "HOROVOD_CROSS_SIZE", "HOROVOD_HOSTNAME", "MY_NUMBER")
    nodes = {node["NodeID"] for node in cluster.nodes()}
    for rank, variables in enumerate(executor.run(lambda: {name: os.environ[name] for name in names})):
        assert variables.pop("HOROVOD_HOSTNAME") in nodes
        assert list(variables.values()) == [str(rank), str(rank), "1", "7"]
    executor.shutdown()
    executor.start()
    assert [rank for rank, *_ in executor.run(place)] == [0, 1, 2, 3], "it can be started again"
    executor.shutdown()
    assert not [group for group in cluster.util.placement_group_table().values() if group["state"] != "REMOVED"]


def test_workers_of_a_node_see_all_gpus_of_the_job_there(cluster: Any) -> None:
    executor = RayExecutor(SETTINGS, num_workers=2, use_gpu=True)
    executor.start()
    seen = executor.run(lambda: os.environ["CUDA_VISIBLE_DEVICES"].split(","))
    assert [sorted(each) for each in seen] == [["0", "1"]] * 2
    executor.shutdown()


def end_of_rank_1() -> None:
    import farandole.numpy as hvd

    hvd.init()
    hvd.barrier()
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    hvd.barrier()


def test_killed_actor_ends_call_and_executor_starts_again(cluster: Any) -> None:
    executor = RayExecutor(SETTINGS, num_workers=2)
    executor.start()
    with pytest.raises((cluster.exceptions.RayActorError, farandole.errors.HorovodInternalError)):
        executor.run(end_of_rank_1)
    executor.start()
    assert [rank for rank, *_ in executor.run(place)] == [0, 1]
    executor.shutdown()


class Model:
    """Has a state that outlives a call."""

    def __init__(self, start: int, step: int = 1) -> None:
        import farandole.numpy as hvd

        hvd.init()
        self.value, self.step = start + hvd.rank(), step

    def add(self) -> int:
        self.value += self.step
        return self.value


def test_object_lives_from_call_to_call(cluster: Any) -> None:
    executor = RayExecutor(SETTINGS, num_workers=2)
    executor.start(Model, executable_args=[10], executable_kwargs={"step": 5})
    assert executor.execute(lambda model: model.add()) == [15, 16]
    assert executor.execute(lambda model: model.add()) == [20, 21]
    assert executor.execute_single(lambda model: model.add()) == 25
    references = executor.run_remote(lambda a, b=0: a + b, args=[1], kwargs={"b": 2})
    assert cluster.get(references) == [3, 3]
    executor.shutdown()


def fails(rank: int) -> None:
    import farandole.numpy as hvd

    hvd.init()
    if hvd.rank() == rank:
        raise ValueError("as told")
    hvd.barrier()


def test_failure_ends_call_with_rays_error(cluster: Any) -> None:
    executor = RayExecutor(SETTINGS, num_workers=2)
    executor.start()
    with pytest.raises(ValueError, match="as told") as caught:
        executor.run(fails, args=[1])
    assert isinstance(caught.value, cluster.exceptions.RayTaskError)
    executor.shutdown()


def sum_or_fail(value: float, failing: int | None) -> float:
    import numpy as np

    import farandole.numpy as hvd

    hvd.init()
    if hvd.rank() == failing:
        raise ValueError("as told")
    return float(hvd.allreduce(np.full(1, value), op=hvd.Sum, name="x")[0])


@pytest.mark.parametrize("call", ["run", "run_remote"])
def test_call_after_one_that_a_rank_is_still_in_is_refused(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr("farandole.ray.fixed_workers._FAILED_CALL_SECONDS", 1.0)
    executor = RayExecutor(SETTINGS, num_workers=2)
    executor.start()
    with pytest.raises(ValueError, match="as told"):
        called = getattr(executor, call)(sum_or_fail, args=[1, 1])
        cluster.get(called)
    # Rank 1 would add its 10 to the 1 for which rank 0 still waits.
    with pytest.raises(RuntimeError, match=r"failed on rank 1 .*as told.* rank 0 is still in it.*start\(\) again"):
        executor.run(sum_or_fail, args=[10, None])
    executor.start()
    assert executor.run(sum_or_fail, args=[10, None]) == [20, 20]
    executor.shutdown()


def test_call_that_was_begun_before_the_last_one_failed_is_refused(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farandole.ray.fixed_workers._FAILED_CALL_SECONDS", 1.0)
    executor = RayExecutor(SETTINGS, num_workers=2)
    executor.start()
    first, second, third = (executor.run_remote(sum_or_fail, args=[value, who]) for value, who in CALLS)
    with pytest.raises(ValueError, match="as told"):
        cluster.get(first[1])
    # Rank 1 would add its 10 to the 1 for which rank 0 still waits.
    for calls in (second, third):
        with pytest.raises(RuntimeError, match=r"failed on rank 1 .* rank 0 is still in it"):
            cluster.get(calls[1])
    assert not cluster.wait([first[0]], timeout=0)[0]
    executor.shutdown()


CALLS = [(1, 1), (10, None), (100, None)]


def test_call_after_one_that_failed_on_all_ranks_uses_the_same_world(cluster: Any) -> None:
    executor = RayExecutor(SETTINGS, num_workers=2)
    executor.start()
    assert executor.run(sum_or_fail, args=[1, None]) == [2, 2]
    with pytest.raises(ValueError, match="as told"):
        executor.run(lambda: fails_on_all())
    assert executor.run(sum_or_fail, args=[10, None]) == [20, 20]
    executor.shutdown()


def fails_on_all() -> None:
    raise ValueError("as told")


def test_infeasible_request_times_out_and_can_be_shut_down(cluster: Any) -> None:
    executor = RayExecutor(RayExecutor.create_settings(placement_group_timeout_s=2), num_workers=100)
    with pytest.raises(TimeoutError, match="Ray did not have the resources for 100 workers within 2 s"):
        executor.start()
    executor.shutdown()
    with pytest.raises(RuntimeError, match=r"call start\(\) first"):
        executor.run(place)
    with pytest.raises(AssertionError, match="not both"):
        RayExecutor(SETTINGS, num_workers=1, num_hosts=1).start()


def test_callers_placement_group_is_used(cluster: Any) -> None:
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = cluster.util.placement_group([{"CPU": 1}] * 3)
    cluster.get(group.ready())

    @cluster.remote(num_cpus=1)
    def trial() -> tuple[list[Any], int]:
        import ray

        executor = RayExecutor(SETTINGS, num_workers=2)
        executor.start()
        result = executor.run(place)
        groups = [each for each in ray.util.placement_group_table().values() if each["state"] == "CREATED"]
        executor.shutdown()
        with pytest.raises(SpecError, match="has room for 3 of 4 workers"):
            RayExecutor(SETTINGS, num_workers=4).start()
        return result, len(groups)

    strategy = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_capture_child_tasks=True)
    result, groups = cluster.get(trial.options(scheduling_strategy=strategy).remote())
    assert [rank for rank, *_ in result] == [0, 1] and groups == 1
    cluster.util.remove_placement_group(group)


def test_trial_of_tune_gives_its_resources_to_workers(cluster: Any, tmp_path: Path) -> None:
    from ray import tune

    def trial(config: dict[str, Any]) -> dict[str, Any]:
        executor = RayExecutor(SETTINGS, num_workers=2)
        executor.start()
        ranks = [rank for rank, *_ in executor.run(place)]
        executor.shutdown()
        return {"ranks": ranks}

    resources = tune.PlacementGroupFactory([{"CPU": 1}] * 3)
    results = tune.Tuner(
        tune.with_resources(trial, resources), run_config=tune.RunConfig(storage_path=str(tmp_path))
    ).fit()
    assert results[0].metrics["ranks"] == [0, 1]


CLIENT = """
import sys
import ray
from farandole.ray import RayExecutor
from tests.ray.test_fixed import SETTINGS, place

ray.init(sys.argv[1])
executor = RayExecutor(SETTINGS, num_workers=2)
executor.start()
assert [rank for rank, *_ in executor.run(place)] == [0, 1]
assert [rank for rank, *_ in ray.get(executor.run_remote(place))] == [0, 1]
executor.shutdown()
"""
ELASTIC_CLIENT = """
import sys
import farandole.ray, ray
from farandole.errors import JobFailed
from farandole.ray import RayExecutor
from tests.ray.test_fixed import SETTINGS

def train(steps):
    import farandole.torch as hvd
    import farandole, torch
    hvd.init()
    state = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, step=0)

    @hvd.elastic.run
    def loop(state):
        while state.step < steps:
            hvd.allreduce(torch.ones(1), name="one")
            state.step += 1
            farandole.report((hvd.rank(), state.step))
            state.commit()
        return state.step

    return loop(state)

def fails():
    raise ValueError("as told")

ray.init(sys.argv[1])
seen = []
assert farandole.ray.run(train, [3], min_workers=2, max_workers=2, callbacks=[seen.append]) == [3, 3]
assert sorted(seen) == [(rank, step) for rank in range(2) for step in (1, 2, 3)], seen
try:
    farandole.ray.run(fails, max_workers=1)
except JobFailed as error:
    assert "ValueError: as told" in str(error)
else:
    raise AssertionError
executor = RayExecutor(SETTINGS, min_workers=2, max_workers=2)
executor.start()
assert executor.run(train, args=[2], callbacks=[seen.append]) == [2, 2]
try:
    executor.run(fails)
except RuntimeError as error:
    assert str(error).startswith("Horovod detected that one or more processes exited with non-zero status")
else:
    raise AssertionError
assert executor.run(train, args=[2]) == [2, 2], "its resources are still there"
executor.shutdown()
"""


@pytest.mark.parametrize("program", [CLIENT, ELASTIC_CLIENT], ids=["fixed", "elastic"])
def test_executor_works_through_ray_client(cluster: Any, nothing_left: None, program: str) -> None:
    """Nodes cannot reach the program: an elastic job is driven by an actor."""
    address, port = cluster.get_runtime_context().gcs_address, free_port()
    options = ("--host", "127.0.0.1", "--port", str(port), "--mode", "specific-server", "--address", address)
    server = subprocess.Popen([sys.executable, "-m", "ray.util.client.server", *options])
    try:
        until(lambda: accepts(port) or server.poll() is not None)
        command = [sys.executable, "-c", program, f"ray://127.0.0.1:{port}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, done.stderr
        until(lambda: cluster.available_resources().get("CPU") == 8)
    finally:
        server.kill()
        server.wait()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def accepts(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def train() -> list[float]:
    import torch

    import farandole.torch as hvd

    hvd.init()
    torch.manual_seed(hvd.rank())
    model = torch.nn.Linear(3, 1)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
    return [float(each) for each in model.weight.detach().flatten()]


def test_training_leaves_equal_parameters(cluster: Any) -> None:
    executor = RayExecutor(SETTINGS, num_workers=2)
    executor.start()
    first, second = executor.run(train)
    assert first == second
    executor.shutdown()

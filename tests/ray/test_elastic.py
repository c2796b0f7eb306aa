"""Elastic jobs on a real cluster: nodes come and go, and what runs on them is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.ray.conftest import until
from tests.ray.jobs import Job, actor_of, dataset, dialer_of, living, train, train_and_record, what_is_wrong

import farandole.ray
from farandole.errors import JobFailed
from farandole.ray import RayExecutor


@pytest.mark.parametrize("find", [lambda pid: pid, dialer_of, actor_of], ids=["worker", "dialer", "actor"])
def test_training_goes_on_after_a_process_is_killed(
    cluster: Any, start_job: Callable[..., Job], find: Callable[[int], int]
) -> None:
    job = start_job({"min_workers": 2, "max_workers": 2}, train, 2)
    job.reaches(2)
    victim = job.workers()[0]
    os.kill(find(victim), signal.SIGKILL)
    until(lambda: not Path(f"/proc/{victim}").exists())
    job.reaches(2)
    results = job.finish()
    assert len(results) == 2 and results[0] == results[1]
    until(lambda: cluster.available_resources().get("CPU") == 8)


def test_rows_of_a_dataset_are_used_once_though_a_worker_is_killed(
    cluster: Any, start_job: Callable[..., Job], tmp_path: Path
) -> None:
    from farandole.ray.data import DatasetSource

    source = DatasetSource(dataset(), shuffle=True)
    job = start_job({"min_workers": 2, "max_workers": 2}, train_and_record, source)
    job.reaches(2)
    until(lambda: len(job.workers()) == 2)
    os.kill(job.workers()[0], signal.SIGKILL)
    until(lambda: job.error or len(list(tmp_path.glob("pid.*"))) >= 3)
    job.finish()
    assert what_is_wrong(tmp_path) == []


def test_job_grows_to_the_most_workers_when_there_is_room(cluster: Any, start_job: Callable[..., Job]) -> None:
    @cluster.remote(num_cpus=6)
    class Other:
        def ready(self) -> None:
            pass

    other = Other.remote()
    cluster.get(other.ready.remote())
    job = start_job({"min_workers": 1, "max_workers": 3}, train, 3)
    job.reaches(2)
    cluster.kill(other)
    job.reaches(3)
    assert len(job.finish()) == 3


def test_callback_that_fails_ends_the_job(cluster: Any, start_job: Callable[..., Job]) -> None:
    job = start_job({"min_workers": 1, "max_workers": 1}, train, 1)
    job.reaches(1)
    job.give_up()
    with pytest.raises(RuntimeError, match="the test is over"):
        job.finish()
    until(lambda: cluster.available_resources().get("CPU") == 8)


def fails() -> None:
    raise ValueError("as told")


def test_failure_is_reported(cluster: Any, nothing_left: None) -> None:
    with pytest.raises(JobFailed, match="ValueError: as told"):
        farandole.ray.run(fails, min_workers=2, max_workers=2)
    executor = RayExecutor(RayExecutor.create_settings(), min_workers=1, max_workers=1)
    executor.start()
    with pytest.raises(
        RuntimeError, match=r"^Horovod detected that one or more processes exited with non-zero status[^\n]*\nerror: "
    ):
        executor.run(fails)  # On a worker that has no rank yet.
    for refused in (executor.run_remote, executor.execute_single):
        with pytest.raises(NotImplementedError):
            refused(fails)
    executor.shutdown()


def test_job_waits_for_its_least_workers(cluster: Any) -> None:
    with pytest.raises(TimeoutError, match="Ray did not have the resources for 50 workers within 1 s"):
        farandole.ray.run(fails, min_workers=50, elastic_timeout=1)


DRIVER = """
import sys
import farandole.ray, ray
from tests.ray.jobs import train
ray.init(address=sys.argv[1])
farandole.ray.run(train, [sys.argv[2], 2], min_workers=2, max_workers=2)
"""
FIXED_DRIVER = """
import sys
import farandole.ray, ray
from tests.ray.test_elastic import steps_for_ever
ray.init(address=sys.argv[1])
executor = farandole.ray.RayExecutor(farandole.ray.RayExecutor.create_settings(), num_workers=2)
executor.start()
executor.run(steps_for_ever, [sys.argv[2]])
"""


def steps_for_ever(folder: str) -> None:
    import farandole.numpy as hvd

    hvd.init()
    while True:
        hvd.allreduce([1.0])
        Path(folder, f"pid.{os.getpid()}").touch()


@pytest.mark.parametrize("program", [DRIVER, FIXED_DRIVER], ids=["elastic", "fixed"])
def test_nothing_is_left_of_a_job_whose_driver_is_killed(
    cluster: Any, nothing_left: None, tmp_path: Path, program: str
) -> None:
    address = cluster.get_runtime_context().gcs_address
    with subprocess.Popen([sys.executable, "-c", program, address, str(tmp_path)]) as driver:
        until(lambda: len(living(tmp_path)) == 2 or driver.poll() is not None)
        assert driver.poll() is None
        driver.kill()
    until(lambda: not living(tmp_path))
    until(lambda: cluster.available_resources().get("CPU") == 8)


def devices() -> str:
    return os.environ["CUDA_VISIBLE_DEVICES"]


def test_gpus_are_resources_of_workers(cluster: Any, nothing_left: None) -> None:
    seen = farandole.ray.run(devices, min_workers=2, max_workers=2, gpus_per_worker=1)
    assert sorted(seen) == ["0", "1"], "its own, since others come and go"
    with pytest.raises(TimeoutError, match="'GPU': 1"):
        farandole.ray.run(devices, min_workers=3, gpus_per_worker=1, elastic_timeout=1)
    until(lambda: cluster.available_resources().get("GPU") == 2)


class Schedule:
    """A discovery of the user's."""

    def __init__(self, address: str) -> None:
        self.address, self.slots = address, 1

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        return {self.address: self.slots}


def logs(folder: str) -> int:
    import time

    import torch

    import farandole.torch as hvd
    from farandole.ray import reports

    hvd.init()
    state = hvd.elastic.ObjectState(hvd.broadcast_object, hvd.rank, steps=0)

    @hvd.elastic.run
    def loop(state: Any) -> int:
        while True:
            # A loss is noticed by collectives.
            done = hvd.allreduce(torch.tensor([float(Path(folder, "finish").exists())]), op=hvd.Min, name="done")
            reports.log({"size": hvd.size()})
            state.commit()
            if done[0]:
                return int(hvd.size())
            time.sleep(0.02)  # The test sees each value in its turn: there must not be more than it can take.

    return loop(state) or 0


def test_executor_follows_users_discovery(cluster: Any, nothing_left: None, tmp_path: Path) -> None:
    schedule = Schedule(cluster.util.get_node_ip_address())
    settings = RayExecutor.create_settings()
    settings.discovery = schedule
    executor = RayExecutor(settings, min_workers=1, max_workers=3, override_discovery=False)
    sizes: list[int] = []

    def logged(value: dict[str, int]) -> None:
        sizes.append(value["size"])
        if value["size"] == 1 and 2 not in sizes:
            schedule.slots = 2
        elif value["size"] == 2 and schedule.slots == 2:
            schedule.slots = 1
        elif schedule.slots == 1 and value["size"] == 1:
            (tmp_path / "finish").touch()

    executor.start()
    assert executor.run(logs, args=[str(tmp_path)], callbacks=[logged])
    executor.shutdown()
    assert {1, 2} == set(sizes)


def test_least_resources_stay_reserved_between_runs(cluster: Any) -> None:
    executor = RayExecutor(RayExecutor.create_settings(), min_workers=2, max_workers=2)
    executor.start()
    assert set(executor.run(lambda: 1)) == {1}, "those that have finished when the first returns"
    assert set(executor.execute(lambda made: made)) == {None}
    executor.shutdown()
    until(lambda: cluster.available_resources().get("CPU") == 8)

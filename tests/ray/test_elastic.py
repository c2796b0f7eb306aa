"""Elastic jobs on a real cluster: nodes come and go, and what runs on them is killed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.ray.conftest import SECONDS, until

import farandole.ray
from farandole.errors import JobFailed
from farandole.ray import RayExecutor

STEPS = 40


def train(folder: str, size: int) -> tuple[list[float], list[int]]:
    """Train until all samples are used once by a world of this size at the end; return the parameters and samples."""
    import torch

    import farandole
    import farandole.torch as hvd

    hvd.init()
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-4), model.named_parameters())
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)

    @hvd.elastic.run
    def loop(state: Any) -> None:
        while True:
            Path(folder, f"pid.{os.getpid()}").touch()
            farandole.report((hvd.rank(), hvd.size(), state.step))
            optimizer.zero_grad()
            model(torch.full((2, 1), float(state.step % 7))).square().mean().backward()
            optimizer.step()
            state.step += 1
            done = hvd.allreduce(torch.tensor([float(Path(folder, "finish").exists())]), op=hvd.Min, name="done")
            state.commit()
            if done[0] and state.step >= STEPS and hvd.size() == size:
                return

    loop(state)
    return [float(each) for each in model.parameters()], [hvd.size()]


class Job:
    """`farandole.ray.run` in a thread."""

    def __init__(self, folder: Path, size: int, **options: Any) -> None:
        self.folder = folder
        self.values: list[tuple[int, int, int]] = []
        self.results: Any = None
        self.error: BaseException | None = None

        def run() -> None:
            try:
                self.results = farandole.ray.run(
                    train, args=[str(folder), size], callbacks=[self.values.append], **options
                )
            except BaseException as error:
                self.error = error

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def reaches(self, size: int) -> None:
        """Wait until steps are taken with this number of workers from now on."""
        seen = len(self.values)
        until(lambda: self.error or any(each[1] == size for each in self.values[seen:]))
        assert self.error is None, self.error

    def worker(self) -> int:
        """Return the process id of a living worker."""
        pids = [int(each.name.partition(".")[2]) for each in self.folder.glob("pid.*")]
        return next(pid for pid in pids if Path(f"/proc/{pid}").exists())

    def finish(self) -> Any:
        (self.folder / "finish").touch()
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.results


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def dialer_of(pid: int) -> int:
    return parent_of(parent_of(pid))


def actor_of(pid: int) -> int:
    return parent_of(dialer_of(pid))


@pytest.mark.parametrize("find", [lambda pid: pid, dialer_of, actor_of], ids=["worker", "dialer", "actor"])
def test_training_goes_on_after_a_process_is_killed(
    cluster: Any, nothing_left: None, tmp_path: Path, find: Callable[[int], int]
) -> None:
    job = Job(tmp_path, 2, min_workers=2, max_workers=2)
    job.reaches(2)
    victim = job.worker()
    os.kill(find(victim), signal.SIGKILL)
    until(lambda: not Path(f"/proc/{victim}").exists())
    job.reaches(2)
    results = job.finish()
    assert len(results) == 2 and results[0] == results[1]
    until(lambda: cluster.available_resources().get("CPU") == 8)


def test_job_grows_to_the_most_workers_when_there_is_room(cluster: Any, nothing_left: None, tmp_path: Path) -> None:
    @cluster.remote(num_cpus=6)
    class Other:
        def ready(self) -> None:
            pass

    other = Other.remote()
    cluster.get(other.ready.remote())
    job = Job(tmp_path, 3, min_workers=1, max_workers=3)
    job.reaches(2)
    cluster.kill(other)
    job.reaches(3)
    assert len(job.finish()) == 3


def fails() -> None:
    raise ValueError("as told")


def test_failure_is_reported(cluster: Any, nothing_left: None) -> None:
    with pytest.raises(JobFailed, match="ValueError: as told"):
        farandole.ray.run(fails, min_workers=2, max_workers=2)
    executor = RayExecutor(RayExecutor.create_settings(), min_workers=1, max_workers=1)
    executor.start()
    with pytest.raises(RuntimeError, match=r"^Horovod detected that one or more processes exited with non-zero status"):
        executor.run(fails)
    for refused in (executor.run_remote, executor.execute_single):
        with pytest.raises(NotImplementedError):
            refused(fails)
    executor.shutdown()


def test_job_waits_for_its_least_workers(cluster: Any) -> None:
    with pytest.raises(TimeoutError, match="Ray did not have the resources for 50 workers within 1 s"):
        farandole.ray.run(fails, min_workers=50, elastic_timeout=1)


class Schedule:
    """A discovery of the user's."""

    def __init__(self, address: str) -> None:
        self.address, self.slots = address, 1

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        return {self.address: self.slots}


def logs(folder: str) -> int:
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

"""A job that loses a worker and gets another one: its metrics and its view say what its workers count themselves."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import kill, processes_with, until

from farandole.control.dashboard.sources import source_for
from farandole.control.dashboard.view_model import job_model
from farandole.control.jobs.view import JobView

pytest.importorskip("prometheus_client")

# Trains until it is told to stand still, and says then what it has counted. Rank 0 chooses a later step for that: if a
# rank stood still at once, another one that had looked a moment before would wait for it in the next step.
TRAINING = """
import json, os, time, torch
import farandole.torch as hvd
from farandole.worker.core import basics
from torch.utils.data import TensorDataset

here, worker = os.environ["TEST_DIRECTORY"], os.environ["FARANDOLE_WORKER"]
hvd.init()
model = torch.nn.Linear(8, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
loader = hvd.elastic.ElasticLoader(TensorDataset(torch.ones(100000, 8)), global_batch_size=16)
taken = 0
chosen = os.path.join(here, "chosen")
loop = hvd.elastic.steps(loader, epochs=100, model=model, optimizer=optimizer)
for (x,) in loop:
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
    taken += 1
    print(f"generation {basics.current().world.generation} of {hvd.size()}", flush=True)
    time.sleep(0.02)
    if hvd.rank() == 0 and os.path.exists(os.path.join(here, "still")) and not os.path.exists(chosen):
        with open(chosen + ".new", "w") as file:
            file.write(str(loop.step + 2))
        os.rename(file.name, chosen)
    if os.path.exists(chosen) and loop.step == int(open(chosen).read()):
        counted = {"steps": taken, "rank": hvd.rank(), "size": hvd.size(), "stats": hvd.stats()}
        with open(os.path.join(here, f"counted.{worker}.new"), "w") as file:
            json.dump(counted, file)
        os.rename(file.name, os.path.join(here, f"counted.{worker}"))
        time.sleep(60)
"""


class SeenJob:
    """A job whose metrics are served."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = {**os.environ, "XDG_CACHE_HOME": str(directory / "cache"), "TEST_DIRECTORY": str(directory)}
        (directory / "train.py").write_text(TRAINING)
        run = [sys.executable, "-m", "farandole", "run", "-np", "2", "--min-np", "1", "--job", "otter", "--metrics=0"]
        with (directory / "said").open("wb") as said:
            command = [*run, sys.executable, str(directory / "train.py")]
            self.process = subprocess.Popen(command, env=self.environment, stdout=said, stderr=said)

    @property
    def said(self) -> str:
        return (self.directory / "said").read_text()

    def says(self, pattern: str) -> re.Match[str]:
        until(lambda: re.search(pattern, self.said), lambda: f"it says {pattern}; it said:\n{self.said[-2000:]}", 90)
        found = re.search(pattern, self.said)
        assert found is not None
        return found

    def worker(self, number: int) -> int:
        """Return the process of a worker."""
        mark = f"FARANDOLE_WORKER={number}"
        pids = [pid for pid in processes_with(mark) if self._is_ours(pid)]
        (pid,) = pids
        return pid

    def _is_ours(self, pid: int) -> bool:
        variables = Path(f"/proc/{pid}/environ").read_bytes()
        return f"TEST_DIRECTORY={self.directory}".encode() in variables.split(b"\0")

    def close(self) -> None:
        stop = [sys.executable, "-m", "farandole", "stop", "otter"]
        for _ in range(2):  # The second time, workers that stand still are killed.
            if self.process.poll() is None:
                subprocess.run(stop, env=self.environment, capture_output=True, timeout=60, check=False)
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)
        for pid in processes_with(f"TEST_DIRECTORY={self.directory}"):
            kill(pid)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[SeenJob]:
    job = SeenJob(tmp_path)
    yield job
    job.close()


def scrape(address: str) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    samples = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}


def targets(address: str) -> dict[str, str]:
    """Return where each worker serves its metrics, by its number."""
    with urllib.request.urlopen(f"http://{address}/targets", timeout=20) as answer:
        groups: list[dict[str, Any]] = json.load(answer)
    assert all(group["labels"]["farandole_job"] == "otter" for group in groups)
    return {
        group["labels"]["farandole_worker"]: group["targets"][0]
        for group in groups
        if "farandole_worker" in group["labels"]
    }


@pytest.mark.timeout(240)  # Three times PyTorch is loaded, on a machine that may be busy.
def test_figures_are_those_of_the_workers_after_a_loss_and_a_join(job: SeenJob) -> None:
    address = job.says(r"metrics of the job: http://(\S+)/metrics")[1]
    job.says("generation 1 of 2")
    assert targets(address).keys() == {"0", "1"}
    kill(job.worker(1))
    job.says(r"\[2\]<stdout>:generation 3 of 2")
    (job.directory / "still").touch()
    until(lambda: all((job.directory / f"counted.{worker}").exists() for worker in (0, 2)), "both stand still", 60)
    counted = {worker: json.loads((job.directory / f"counted.{worker}").read_text()) for worker in (0, 2)}
    assert targets(address).keys() == {"0", "2"}
    for worker, own in counted.items():
        scraped = scrape(targets(address)[str(worker)])
        assert scraped["farandole_generation"] == 3
        assert (scraped["farandole_rank"], scraped["farandole_world_size"]) == (own["rank"], own["size"])
        assert scraped["farandole_steps_total"] == own["steps"], "over all worlds"
        requests = own["stats"]["operations"]["allreduce"]["requests"]
        total = scraped['farandole_collectives_total{operation="allreduce"}']
        assert total > requests if worker == 0 else total == requests, (
            "a newcomer has had one world, the survivor three"
        )
    of_job = scrape(address)
    assert {name: of_job[f"farandole_job_{name}"] for name in ("workers", "world_size", "generation")} == {
        "workers": 2,
        "world_size": 2,
        "generation": 3,
    }
    assert (of_job["farandole_job_losses_total"], of_job["farandole_job_joins_total"]) == (1, 1)
    see(job, counted)


def see(job: SeenJob, counted: dict[int, Any]) -> None:
    """Look at the job as the dashboard does."""
    source = source_for("otter", "local", job.environment)

    def steps_told() -> dict[int, int]:
        return {each.worker: each.steps for each in source.view("otter", 0)[1].workers if each.runs}

    until(lambda: steps_told() == {worker: own["steps"] for worker, own in counted.items()}, "the last steps are told")
    status, view = source.view("otter", 0)
    assert isinstance(view, JobView)
    kinds = [moment.kind for moment in view.moments]
    assert kinds == ["world", "loss", "world", "join", "world"]
    assert "was killed by SIGKILL" in view.moments[1].text
    model = job_model(status, view, view.at)
    assert [tile["worker"] for host in model["hosts"] for tile in host["workers"]] == [0, 2]
    assert model["gone"][0]["worker"] == 1
    assert [mark["kind"] for mark in model["chart"]["marks"]] == ["loss", "join"]
    assert any(line.worker == 2 and line.text == "generation 3 of 2" for line in view.lines)

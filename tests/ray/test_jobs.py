"""`--on ray` with a real Ray."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ray.conftest import until
from tests.ray.jobs import living

from farandole.control.jobs.errors import Refused
from farandole.control.jobs.spec import from_dict
from farandole.control.jobs.status import JobState
from farandole.control.ray_jobs.service import RayJobs

PROGRAM = """
import os, sys, time
import farandole.numpy as hvd
hvd.init()
print("sum", hvd.allreduce([hvd.rank() + 1.0], op=hvd.Sum)[0], os.environ["MINE"], os.getcwd(), flush=True)
open(f"pid.{os.getpid()}", "w").close()
time.sleep(float(sys.argv[1]))
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def jobs() -> Iterator[RayJobs]:
    """The jobs of a cluster of this machine."""
    import ray

    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    context = ray.init(
        "local",
        num_cpus=4,
        include_dashboard=True,
        dashboard_port=0,
        object_store_memory=100_000_000,
        log_to_driver=False,
    )
    yield RayJobs(f"http://{context.dashboard_url}")
    ray.shutdown()


def submit(jobs: RayJobs, folder: Path, name: str, words: tuple[str, str], workers: str) -> None:
    (folder / "program.py").write_text(PROGRAM)
    spec = {"name": name, "command": ["python", "program.py", *words], "workers": workers, "grace": 5}
    submit_when_ready(jobs, {**spec, "workingDirectory": str(folder), "environment": {"MINE": "7"}})


def submit_when_ready(jobs: RayJobs, spec: dict[str, Any]) -> None:
    """Submit a job. Ray refuses it as long as its agent, which starts after the dashboard, is not there."""

    def is_accepted() -> bool:
        try:
            return jobs.submit(from_dict(spec)) == spec["name"]
        except Refused as error:
            if "No available agent" not in error.message:
                raise
            return False

    until(is_accepted)


@pytest.mark.parametrize("workers", ["2", "1:2"], ids=["fixed", "elastic"])
def test_job_runs_and_its_output_is_followed(jobs: RayJobs, nothing_left: None, tmp_path: Path, workers: str) -> None:
    name = f"a{len(workers)}"
    submit(jobs, tmp_path, name, ("0", "0"), workers)
    lines = [line for line in jobs.logs(name, follow=True) if "sum" in line]
    total = {"2": {f"sum 3.0 7 {tmp_path}"}}.get(workers, {f"sum 3.0 7 {tmp_path}", f"sum 1.0 7 {tmp_path}"})
    assert lines and {line.partition(":")[2].strip() for line in lines if line.startswith("[")} <= total
    status = jobs.status(name)
    assert (status.state, status.exit_code) == (JobState.SUCCEEDED, 0)


def test_failure_of_a_worker_is_the_failure_of_the_job(jobs: RayJobs, nothing_left: None, tmp_path: Path) -> None:
    submit(jobs, tmp_path, "b", ("0", "3"), "2")
    until(lambda: jobs.status("b").state.is_over)
    status = jobs.status("b")
    assert (status.state, status.exit_code) == (JobState.FAILED, 3)
    assert any("exited with code 3" in line for line in jobs.logs("b"))


def test_cancelled_job_leaves_nothing(jobs: RayJobs, nothing_left: None, tmp_path: Path) -> None:
    submit(jobs, tmp_path, "c", ("600", "0"), "2")
    until(lambda: len(living(tmp_path)) == 2)
    assert jobs.status("c").state is JobState.RUNNING
    jobs.cancel("c")
    until(lambda: jobs.status("c").state is JobState.CANCELLED)
    until(lambda: not living(tmp_path))


def test_folder_that_nodes_do_not_have_is_an_error(jobs: RayJobs, tmp_path: Path) -> None:
    spec = {"name": "d", "command": ["true"], "workers": 1, "workingDirectory": str(tmp_path / "none")}
    submit_when_ready(jobs, spec)
    until(lambda: jobs.status("d").state.is_over)
    assert jobs.status("d").state is JobState.FAILED
    assert any("the nodes of the Ray cluster have no folder" in line for line in jobs.logs("d"))

"""Faults on executors that are processes of their own: `local-cluster[2,1,1024]`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import spark_jobs
from pyspark.sql import SparkSession
from spark_jobs import (
    dialer_of,
    executor_of,
    kill_when_ready,
    python_worker_of,
    train_fixed,
    wait_for_its_end,
)
from spark_sessions import SECONDS, processes_with, start_spark, wait_until

import farandole.spark
from farandole.errors import JobFailed

cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(spark_jobs)

MASTER = "local-cluster[2,1,1024]"
SAMPLES, BATCH, EPOCHS = 48, 4, 2
FALLS_IN, WAITS_IN = 3, 6


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = start_spark(MASTER, tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


# --- what runs in the workers ---------------------------------------------------------------------------------------


def train_elastic(folder: str) -> tuple[int, int, list[float]]:
    """Train an embedding of the samples; a worker falls in one step, and a later one waits for the next worker."""
    import time

    import torch

    import farandole.torch as hvd
    from farandole.worker.elastic.world_changes import pending_change

    hvd.init()
    model = torch.nn.Embedding(SAMPLES, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
    loader = hvd.elastic.ElasticLoader(torch.arange(SAMPLES), global_batch_size=BATCH)
    loop = hvd.elastic.steps(loader, epochs=EPOCHS, model=model, optimizer=optimizer)
    for batch in loop:
        # The second worker may join later than in the first step.
        if loop.step >= FALLS_IN and hvd.rank() == 1:
            wait_for_its_end(Path(folder))
        end = time.monotonic() + SECONDS
        while loop.step >= WAITS_IN and hvd.size() == 1 and pending_change() is None and time.monotonic() < end:
            time.sleep(0.05)
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()  # From here on, the step counts.
        with open(f"{folder}/used-{os.getpid()}", "a") as file:
            print(*batch.tolist(), file=file)
    return hvd.rank(), hvd.size(), model.weight.flatten().tolist()


def is_what(pid: int, words: str) -> bool:
    return words in Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def test_processes_of_a_job_are_those_that_are_killed_here(spark: SparkSession, mark: str, tmp_path: Path) -> None:
    looked = []

    def look(worker: int) -> int:
        assert is_what(worker, "farandole.control.launcher.call")
        assert is_what(dialer_of(worker), "farandole.control.agent.dial")
        assert is_what(python_worker_of(worker), "pyspark.daemon")
        assert is_what(executor_of(worker), "CoarseGrainedExecutorBackend")
        looked.append(worker)
        return worker

    with pytest.raises(JobFailed):
        kill_when_ready(tmp_path, look)
        farandole.spark.run(train_fixed, (str(tmp_path),), num_proc=2, env={"MARK": mark})
    assert looked


KILLED: dict[str, tuple[Callable[[int], int], str]] = {
    "worker": (lambda worker: worker, r"rank 1 .*killed by SIGKILL"),
    "dialer": (
        dialer_of,
        r"(?s)lost first, with rank 1.*connects task 1 of Spark to the launcher was killed by SIGKILL",
    ),
    "Python worker": (python_worker_of, r"(?s)lost first, with rank 1.*Python worker exited unexpectedly"),
    "executor": (executor_of, r"(?s)lost first, with rank 1.*ExecutorLostFailure .*exited with code 137"),
}


@pytest.mark.parametrize("killed", KILLED)
def test_job_of_fixed_size_ends_with_the_cause(spark: SparkSession, mark: str, tmp_path: Path, killed: str) -> None:
    find, cause = KILLED[killed]
    kill_when_ready(tmp_path, find)
    with pytest.raises(JobFailed, match=cause):
        farandole.spark.run(train_fixed, (str(tmp_path),), num_proc=2, env={"MARK": mark})
    assert spark.sparkContext.parallelize([1, 2], 2).sum() == 3, "the tasks are free again"


@pytest.mark.parametrize("killed", KILLED)
def test_elastic_job_trains_on_with_each_sample_once(
    spark: SparkSession, mark: str, tmp_path: Path, killed: str
) -> None:
    kill_when_ready(tmp_path, KILLED[killed][0])
    results = farandole.spark.run_elastic(
        train_elastic, (str(tmp_path),), num_proc=2, min_num_proc=1, env={"MARK": mark}
    )
    check_training(tmp_path, results)
    assert (tmp_path / "victim").exists()


def check_training(folder: Path, results: list[Any]) -> None:
    """Check that two workers have ended with the same parameters, and each sample was used once in each epoch."""
    assert [each[:2] for each in results] == [(0, 2), (1, 2)], "a worker has taken the place of the lost one"
    assert results[0][2] == results[1][2]
    used = Counter(int(sample) for path in folder.glob("used-*") for sample in path.read_text().split())
    assert used == dict.fromkeys(range(SAMPLES), EPOCHS)


JAVA = """
import os
import signal
import sys
import threading
from pathlib import Path

import cloudpickle
import farandole.spark
import spark_jobs
from farandole.errors import JobFailed
from spark_jobs import train_fixed
from spark_sessions import start_spark, wait_until

cloudpickle.register_pickle_by_value(spark_jobs)

folder, mark, elastic = sys.argv[1:]
run = farandole.spark.run_elastic if elastic else farandole.spark.run

def end(spark, ended, victim):
    wait_until(victim.exists, "no worker has come")
    if ended == "stopped":
        spark.stop()
    else:
        os.kill(spark.sparkContext._gateway.proc.pid, signal.SIGKILL)

# The second session has the first one's Java process, whose start takes longest.
for ended in ("stopped", "killed"):
    own = Path(folder, ended)
    own.mkdir()
    spark = start_spark("local[2]", own)
    thread = threading.Thread(target=end, args=(spark, ended, own / "victim"))
    thread.start()
    try:
        run(train_fixed, (str(own),), num_proc=2, env={"MARK": mark})
    except JobFailed as error:
        print(f"{ended}: {error}")
    thread.join()
"""


@pytest.mark.parametrize("elastic", ["", "elastic"])
def test_end_of_spark_itself_is_the_cause(mark: str, tmp_path: Path, elastic: str) -> None:
    printed = run_driver(JAVA, tmp_path, mark, elastic).communicate(timeout=SECONDS)[0]
    stopped, _, killed = printed.partition("\nkilled: ")
    assert "\nstopped: " in f"\n{stopped}" and "the SparkContext was stopped" in stopped
    assert "the Java process of Spark's driver was killed by SIGKILL" in killed


def run_driver(script: str, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Run a driver in a separate process."""
    support = Path(__file__).parents[1] / "support"
    path = os.pathsep.join([str(support), os.environ["PYTHONPATH"]])
    return subprocess.Popen(
        [sys.executable, "-c", script, str(folder), *arguments],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


DRIVER = """
import sys
from pathlib import Path

import cloudpickle
import farandole.spark
import spark_jobs
from spark_jobs import train_fixed
from spark_sessions import start_spark

cloudpickle.register_pickle_by_value(spark_jobs)
folder, mark, master = sys.argv[1:]
spark = start_spark(master, Path(folder))
farandole.spark.run(train_fixed, (folder,), num_proc=2, env={"MARK": mark})
"""


def test_nothing_is_left_of_a_killed_driver(mark: str, tmp_path: Path) -> None:
    driver = run_driver(DRIVER, tmp_path, mark, MASTER)
    wait_until(lambda: (tmp_path / "victim").exists() or driver.poll() is not None, "no worker has come")
    assert driver.poll() is None, driver.communicate()
    os.kill(driver.pid, signal.SIGKILL)
    driver.communicate(timeout=SECONDS)
    wait_until(lambda: not processes_with(f"MARK={mark}"), "workers are left")
    wait_until(lambda: not processes_with(f"SPARK_WORKER_DIR={tmp_path}"), "processes of Spark are left")

"""Jobs on two executors, which are processes of their own, and their faults: `local-cluster[2,1,600]`."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pytest
from pyspark.sql import SparkSession
from spark_sessions import SECONDS, processes_with, start_spark, wait_until

import farandole.spark
from farandole.errors import JobFailed

cloudpickle.register_pickle_by_value(sys.modules[__name__])

CLUSTER = "local-cluster[2,1,600]"


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = start_spark(CLUSTER, tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


def kill_above(name: str) -> None:
    """Kill the process that has started this one, directly or not, and whose command line holds a word."""
    process = os.getpid()
    while process > 1:
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        if name in Path(f"/proc/{process}/cmdline").read_bytes().decode().split("\0"):
            os.kill(process, signal.SIGKILL)
            return
    raise AssertionError(f"no process above is {name}")


EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
FAULTS = [EXECUTOR, "pyspark.daemon", "farandole.control.agent.dial"]


def lose(name: str) -> None:
    import farandole.numpy as hvd

    hvd.init()
    hvd.barrier()
    if hvd.rank() == 1:
        kill_above(name)
    hvd.barrier()


@pytest.mark.parametrize("name", FAULTS)
def test_a_lost_task_ends_the_job_with_its_cause(spark: SparkSession, mark: str, name: str) -> None:
    with pytest.raises(JobFailed, match=r"lost|Spark ended the tasks") as error:
        farandole.spark.run(lose, (name,), num_proc=2, env={"MARK": mark})
    print(error.value)
    assert farandole.spark.run(lambda: 3, num_proc=2, env={"MARK": mark}) == [3, 3], "Spark's executors are free again"


def train(folder: str, name: str) -> list[float]:
    """Train, and write the samples of steps that count; rank 1 of the first world kills a process in step 3."""
    import torch

    import farandole.torch as hvd

    hvd.init()
    model = torch.nn.Linear(1, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
    samples = torch.utils.data.TensorDataset(torch.arange(48.0).unsqueeze(1) / 48)
    loader = hvd.elastic.ElasticLoader(samples, global_batch_size=4)
    loop = hvd.elastic.steps(loader, epochs=100, model=model, optimizer=optimizer)
    sizes = set()
    for (x,) in loop:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        if loop.step == 3 and hvd.rank() == 1 and not os.path.exists(f"{folder}/killed"):
            Path(folder, "killed").touch()
            kill_above(name)
        optimizer.step()
        sizes.add(hvd.size())
        if loop.epoch == 0:
            with open(f"{folder}/used-{os.getpid()}", "a") as file:
                print(*(round(48 * value) for value in x.flatten().tolist()), file=file)
        # Once another worker has come in place of the lost one, the rest is not needed.
        if loop.epoch > 0 and sizes >= {1, 2} and hvd.size() == 2:
            loop.stop()
    return [float(value) for value in model.weight.detach().flatten()]


@pytest.mark.parametrize("name", FAULTS)
def test_an_elastic_job_goes_on_when_a_task_is_lost(spark: SparkSession, mark: str, tmp_path: Path, name: str) -> None:
    told = io.StringIO()
    results = farandole.spark.run_elastic(
        train, (str(tmp_path), name), num_proc=2, min_num_proc=1, env={"MARK": mark}, stdout=told, stderr=told
    )
    assert (tmp_path / "killed").exists()
    assert len(results) == 2, told.getvalue()
    assert results[0] == results[1]
    used = Counter(int(row) for path in tmp_path.glob("used-*") for row in path.read_text().split())
    assert used == dict.fromkeys(range(48), 1)


DRIVER = """
import sys
sys.path[:0] = sys.argv[2].split(":")
from pathlib import Path
from spark_sessions import start_spark
import farandole.spark

def wait_for_ever():
    import time
    import farandole.numpy as hvd
    hvd.init()
    print("here", flush=True)
    time.sleep(1000)

start_spark("local-cluster[2,1,600]", Path(sys.argv[1]))
farandole.spark.run(wait_for_ever, num_proc=2, env={"MARK": sys.argv[3]})
"""


def test_nothing_is_left_of_a_killed_driver(tmp_path: Path, mark: str) -> None:
    (tmp_path / "driver.py").write_text(DRIVER)
    path = os.pathsep.join([str(Path(__file__).parents[1] / "support"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(tmp_path / "driver.py"), str(tmp_path), path, mark]
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_GATEWAY_PORT"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as driver:
        assert driver.stdout is not None
        seen = 0
        for line in driver.stdout:
            seen += "here" in line
            if seen == 2:
                break
        assert seen == 2
        assert processes_with(f"MARK={mark}")
        driver.kill()
        wait_until(lambda: not processes_with(f"MARK={mark}"), f"workers live {SECONDS} s after the driver")

"""Jobs of fixed size on Spark Connect: a server with executors that are processes of their own, and this client."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pyspark
import pytest
import spark_jobs
from spark_jobs import dialer_of, fail, kill_when_ready, place, python_worker_of, train_fixed
from spark_sessions import SECONDS, SETTINGS, is_free, wait_until

import farandole.spark
from farandole.control.launcher.agents.reception import HostsMissing
from farandole.errors import JobFailed, SpecError

for module in (sys.modules[__name__], spark_jobs):
    cloudpickle.register_pickle_by_value(module)

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder for the files of Spark and its tasks."""
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(autouse=True)
def leaves_no_files(folder: Path) -> Iterator[None]:
    """Check that tasks remove their files, also those that Spark kills."""
    yield
    assert not list(folder.glob("farandole-run-*"))


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[str]:
    """Start a server of Spark Connect, and return its URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = {**SETTINGS, "spark.connect.grpc.binding.port": port, "spark.sql.warehouse.dir": folder / "warehouse"}
    options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    folders = dict.fromkeys(["SPARK_WORKER_DIR", "SPARK_LOCAL_DIRS", "TMPDIR"], os.fspath(folder))
    process = subprocess.Popen(
        [f"{pyspark.__path__[0]}/bin/spark-submit", "--master", "local-cluster[2,1,1024]", "--class", SERVER, *options],
        env={**os.environ, **folders, "PYSPARK_PYTHON": sys.executable},
        cwd=folder,
        start_new_session=True,
    )
    try:
        wait_until(lambda: not is_free(port) or process.poll() is not None, "the server does not listen")
        assert process.poll() is None
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(SECONDS)


@pytest.fixture(scope="module")
def spark(server: str) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    session = SparkSession.builder.remote(server).getOrCreate()
    yield session
    session.stop()
    for name in ("SPARK_CONNECT_MODE_ENABLED", "SPARK_REMOTE"):
        os.environ.pop(name, None)


def test_results_by_rank_and_the_last_lines(spark: Any, mark: str) -> None:
    out, err = io.StringIO(), io.StringIO()
    results = farandole.spark.run(place, ("w",), {"number": 3}, num_proc=2, env={"MARK": mark}, stdout=out, stderr=err)
    assert [each["place"][:2] for each in results] == [(0, 2), (1, 2)]
    for each in results:
        assert (each["total"], each["given"], each["devices"]) == (2.0, ("w", 3), [])
        assert each["variables"]["MARK"] == mark
    assert sorted(out.getvalue().splitlines()) == ["[0]<stdout>:out 0", "[1]<stdout>:out 1"]
    assert {"[0]<stderr>:err 0", "[1]<stderr>:err 1"} <= set(err.getvalue().splitlines())


def test_a_result_may_be_larger_than_a_row(spark: Any, mark: str) -> None:
    sizes = farandole.spark.run(lambda: bytes(5 << 20), num_proc=2, env={"MARK": mark})
    assert [len(each) for each in sizes] == [5 << 20] * 2


def test_an_exception_of_the_function_is_the_cause(spark: Any, mark: str) -> None:
    with pytest.raises(JobFailed, match=r"rank 1 .* exited with code 1") as error:
        farandole.spark.run(fail, num_proc=2, env={"MARK": mark})
    assert isinstance(error.value.__cause__, KeyError)
    assert spark.range(3).count() == 3, "the tasks are free again"


KILLED: dict[str, tuple[Callable[[int], int], str]] = {
    "worker": (lambda worker: worker, r"rank 1 .*killed by SIGKILL"),
    "dialer": (
        dialer_of,
        r"(?s)lost first, with rank 1.*connects task 1 of Spark to the launcher was killed by SIGKILL",
    ),
    # Spark starts the tasks again, unless one of them has ended already.
    "Python worker": (python_worker_of, "Spark has lost a task of the job|Python worker exited unexpectedly"),
}


@pytest.mark.parametrize("killed", KILLED)
def test_job_ends_with_the_cause_and_does_not_begin_anew(spark: Any, mark: str, tmp_path: Path, killed: str) -> None:
    find, cause = KILLED[killed]
    kill_when_ready(tmp_path, find)
    with pytest.raises(JobFailed, match=cause):
        farandole.spark.run(train_fixed, (str(tmp_path),), num_proc=2, env={"MARK": mark})
    assert len(list(tmp_path.glob("begun-*"))) == 2


def test_tasks_that_do_not_start_are_told_and_given_back(spark: Any, mark: str) -> None:
    with pytest.raises(HostsMissing, match=r"^Timed out waiting for Spark tasks to start: the 4 tasks") as error:
        farandole.spark.run(lambda: 0, num_proc=4, start_timeout=3, env={"MARK": mark})
    assert "check that 4 cores are free" in str(error.value)
    assert spark.range(3).count() == 3, "the tasks are free again"


def test_an_interrupted_job_leaves_nothing(spark: Any, mark: str, tmp_path: Path) -> None:
    def interrupt() -> None:
        wait_until(lambda: (tmp_path / "victim").exists(), "no worker has come")
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        farandole.spark.run(train_fixed, (str(tmp_path),), num_proc=2, env={"MARK": mark})
    assert spark.range(3).count() == 3, "the tasks are free again"


def test_horovod_runner_returns_the_value_of_rank_0(spark: Any) -> None:
    def rank(add: int) -> int:
        import farandole.numpy as hvd

        hvd.init()
        return int(hvd.rank()) + add + 10 * hvd.size()

    assert farandole.spark.HorovodRunner(np=2).run(rank, add=5) == 25


def test_estimator_fits_and_transforms_but_is_not_saved(spark: Any, tmp_path: Path) -> None:
    import torch

    from farandole.spark.store import Store
    from farandole.spark.torch import TorchEstimator

    frame = spark.createDataFrame([(i / 100, i / 25 + 1) for i in range(100)], ["a", "y"])
    model = torch.nn.Sequential(torch.nn.Unflatten(0, (-1, 1)), torch.nn.Linear(1, 1))
    estimator = TorchEstimator(
        num_proc=2,
        store=Store.create(str(tmp_path)),
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.2),
        loss=torch.nn.functional.mse_loss,
        feature_cols=["a"],
        label_cols=["y"],
        batch_size=8,
        epochs=20,
        verbose=0,
    )
    fitted = estimator.fit(frame)
    rows = fitted.transform(frame).collect()
    assert max(abs(row["y__output"] - row["y"]) for row in rows) < 0.5
    with pytest.raises(SpecError, match="elastic jobs and saved stages need"):
        fitted.write()


def test_what_connect_cannot_do_is_refused(spark: Any) -> None:
    with pytest.raises(SpecError, match=r"give the number of workers: num_proc="):
        farandole.spark.run(print)
    with pytest.raises(SpecError, match=r"no SparkContext, which elastic jobs.*farandole\.spark\.run with num_proc="):
        farandole.spark.run_elastic(print, num_proc=2)

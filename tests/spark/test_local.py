"""Jobs in tasks of Spark, in one process: `local[2]`."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import horovod.spark
import pytest
import spark_jobs
from pyspark.sql import SparkSession
from spark_jobs import fail, place
from spark_sessions import start_spark

import farandole.spark
from farandole.control.launcher.agents.reception import HostsMissing
from farandole.errors import JobFailed, SpecError

cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(spark_jobs)


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = start_spark("local[2]", tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.mark.parametrize("run", [farandole.spark.run, horovod.spark.run])
def test_results_by_rank_and_lines_after_their_rank(
    spark: SparkSession, run: Any, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_DRIVER", "1")
    out, err = io.StringIO(), io.StringIO()
    # With `local`, the task runs in a process that this one has started before it had that variable.
    env = {"MARK": mark, "PATH": None} if run is farandole.spark.run else {"MARK": mark}
    results = run(place, ("w",), {"number": 3}, num_proc=2, env=env, stdout=out, stderr=err)
    assert [each["place"] for each in results] == [(0, 2, 0, 2), (1, 2, 1, 2)]
    for each in results:
        assert (each["total"], each["given"], each["devices"]) == (2.0, ("w", 3), [])
        assert each["variables"]["MARK"] == mark
        assert each["variables"]["OF_DRIVER"] is None
        assert Path(each["folder"]).is_dir()
    assert sorted(out.getvalue().splitlines()) == ["[0]<stdout>:out 0", "[1]<stdout>:out 1"]
    assert {"[0]<stderr>:err 0", "[1]<stderr>:err 1"} <= set(err.getvalue().splitlines())


def test_as_many_workers_as_the_default_parallelism(
    spark: SparkSession, mark: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert farandole.spark.run(lambda: 7, env={"MARK": mark}) == [7, 7]
    assert "2 workers, as many as Spark's default parallelism" in capsys.readouterr().err


def test_tasks_that_do_not_start_are_told_with_advice(spark: SparkSession, mark: str) -> None:
    with pytest.raises(HostsMissing, match=r"^Timed out waiting for Spark tasks to start: only 0 of 4 slots") as error:
        farandole.spark.run(lambda: 0, num_proc=4, start_timeout=3, env={"MARK": mark})
    assert "check that 4 cores are free" in str(error.value)


def test_an_exception_of_the_function_is_the_cause(spark: SparkSession, mark: str) -> None:
    with pytest.raises(JobFailed, match=r"rank 1 .* exited with code 1") as error:
        farandole.spark.run(fail, num_proc=2, env={"MARK": mark})
    assert isinstance(error.value.__cause__, KeyError)
    with pytest.raises(RuntimeError, match=r"^Horovod detected that one or more processes exited") as error:
        horovod.spark.run(fail, num_proc=2, env={"MARK": mark})
    assert "Process name: 1\nExit code: 1" in str(error.value)
    assert spark.sparkContext.parallelize([1, 2], 2).sum() == 3, "the tasks are free again"


def die() -> None:
    import farandole.numpy as hvd

    hvd.init()
    if hvd.rank() == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    hvd.barrier()


def test_a_killed_worker_ends_the_job(spark: SparkSession, mark: str) -> None:
    with pytest.raises(JobFailed, match=r"rank 0 .*killed by SIGKILL"):
        farandole.spark.run(die, num_proc=2, env={"MARK": mark})


def wait_for_ever() -> None:
    import time

    import farandole.numpy as hvd

    hvd.init()
    print("here", flush=True)
    time.sleep(1000)


def test_a_cancelled_job_group_ends_the_job(spark: SparkSession, mark: str) -> None:
    class Cancel(io.StringIO):
        def write(self, text: str) -> int:
            if "here" in text:
                threading.Thread(target=spark.sparkContext.cancelAllJobs).start()
            return super().write(text)

    with pytest.raises(JobFailed, match=r"Spark ended the tasks|was lost|lost"):
        farandole.spark.run(wait_for_ever, num_proc=2, env={"MARK": mark}, stdout=Cancel())


def test_horovod_runner_returns_the_value_of_rank_0(spark: SparkSession) -> None:
    def rank(add: int) -> int:
        import farandole.numpy as hvd

        hvd.init()
        return int(hvd.rank()) + add + 10 * hvd.size()

    assert farandole.spark.HorovodRunner(np=2).run(rank, add=5) == 25
    assert farandole.spark.HorovodRunner(np=-2).run(rank, add=5) == 25
    assert farandole.spark.HorovodRunner(np=0).run(rank, add=5) == 25
    with pytest.raises(SpecError, match="choose from all, log_callback_only"):
        farandole.spark.HorovodRunner(np=2, driver_log_verbosity="some")


def test_elastic_results_by_rank(spark: SparkSession, mark: str) -> None:
    results = farandole.spark.run_elastic(place, ("w",), num_proc=2, env={"MARK": mark})
    assert [each["place"][:2] for each in results] == [(0, 2), (1, 2)]
    assert [each["total"] for each in results] == [2.0, 2.0]

"""What farandole adds to Spark's own times, on executors of this machine.

    PYTHONPATH=$PWD/src .venv-frameworks/spark/bin/python -m benchmarks.on_spark [--rounds N] [--rows N] [--json FILE]

Each time of farandole's is printed beside the time that Spark takes alone for the same tasks, measured in turn; steps
are compared with the same steps under `farandole.run`, and `transform` with a model that is called for each row. It
needs PySpark and PyTorch: the environment that `make test-spark` makes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle

from benchmarks import stepping
from benchmarks.stepping import (
    Median,
    ancestors,
    began,
    next_step,
    nothing,
    report,
    step_for_ever,
    steps,
    together,
    two_step,
    wait,
)

cloudpickle.register_pickle_by_value(stepping)

ROWS = 20_000
BATCH = 256


class OnSpark:
    """What is measured, with one session of Spark.

    Args:
        session: the session.
        rows: the number of rows that are transformed.
    """

    def __init__(self, session: Any, rows: int) -> None:
        self._context = session.sparkContext
        self._frame = session.range(rows).selectExpr("cast(id as double) / 1000 as a").cache()
        self._frame.count()

    def barrier(self) -> float:
        """Return the seconds of an empty barrier stage of 2 tasks."""
        began = time.monotonic()
        self._context.parallelize(range(2), 2).barrier().mapPartitions(list).collect()
        return time.monotonic() - began

    def empty_job(self) -> float:
        """Return the seconds of `farandole.spark.run` with 2 workers that do nothing."""
        import farandole.spark

        began = time.monotonic()
        farandole.spark.run(nothing, num_proc=2, verbose=0)
        return time.monotonic() - began

    def steps_on_spark(self) -> tuple[float, float]:
        """Return the seconds of many sums in tasks of Spark, and those of them that rank 0 computed."""
        import farandole.spark

        both: tuple[float, float] = farandole.spark.run(steps, num_proc=2, verbose=0)[0]
        return both

    def steps_alone(self) -> tuple[float, float]:
        """Return the seconds of these sums under farandole's launcher, and those of them that rank 0 computed."""
        import farandole

        both: tuple[float, float] = farandole.run(steps, num_proc=2)[0]
        return both

    def loss_of_executor(self) -> dict[str, float]:
        """Kill an executor in an elastic job.

        Returns:
            Seconds: `survivor`, from the kill to the survivor's next step; `called`, from the moment when Spark has a
            new executor until the worker there is called; `joined`, from that worker's `init()` to its first step.
        """
        executors = self._executors()
        with two_step(run_elastic) as (folder, workers):
            victim, survivor = workers
            killed = time.monotonic()
            os.kill(next(pid for pid in ancestors(victim) if _is_executor(pid)), signal.SIGKILL)
            alone = next_step(folder, survivor, 1, killed)
            replaced = self._replaced(executors)
            (newcomer,) = wait(lambda: set(together(folder)) - set(workers))
            called, init = began(folder, newcomer)
            return {
                "survivor": alone,
                "called": called - replaced,
                "joined": next_step(folder, newcomer, 2, 0.0) - init,
            }

    def task_after_loss(self) -> float:
        """Kill an executor, and return the seconds from Spark's new one to the first Python task there."""
        executors = self._executors()
        os.kill(self._context.parallelize([0], 1).map(lambda _: _executor()).first(), signal.SIGKILL)
        replaced = self._replaced(executors)
        starts = self._context.parallelize(range(2), 2).map(lambda _: (time.monotonic(), time.sleep(5))[0]).collect()
        return float(max(starts)) - replaced

    def by_batches(self) -> float:
        """Return the seconds of `transform` by batches."""
        return self._transform(BATCH)

    def row_by_row(self) -> float:
        """Return the seconds of `transform` with a call of the model for each row."""
        return self._transform(1)

    def _replaced(self, executors: int) -> float:
        """Wait until there are as many executors as before, and return the time."""
        wait(lambda: self._executors() < executors)
        wait(lambda: self._executors() == executors)
        return time.monotonic()

    def _executors(self) -> int:
        return int(self._context._jsc.sc().getExecutorMemoryStatus().size())

    def _transform(self, batch: int) -> float:
        import torch

        from farandole.spark.torch import TorchModel

        layers = (torch.nn.Unflatten(0, (-1, 1)), torch.nn.Linear(1, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
        model = TorchModel(model=torch.nn.Sequential(*layers), feature_cols=["a"], label_cols=["y"], batch_size=batch)
        began = time.monotonic()
        model.transform(self._frame).write.format("noop").mode("overwrite").save()
        return time.monotonic() - began


def run_elastic(folder: str) -> None:
    """Run an elastic job of one or two workers."""
    import farandole.spark

    farandole.spark.run_elastic(step_for_ever, (folder,), num_proc=2, min_num_proc=1)


def _executor() -> int:
    """Return the process of the executor that runs this task."""
    return next(pid for pid in ancestors(os.getpid()) if _is_executor(pid))


def _is_executor(pid: int) -> bool:
    return b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes()


@contextlib.contextmanager
def started(folder: str) -> Iterator[Any]:
    """Yield a session of Spark with two executors, whose files are in a folder, and end it afterwards."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_WORKER_DIR"] = os.environ["SPARK_LOCAL_DIRS"] = folder
    builder = SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    session = builder.config("spark.executor.memory", "1g").getOrCreate()
    try:
        yield session
    finally:
        session.stop()


def main() -> None:
    """Measure all in turn, several times."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    from pyspark import cloudpickle as of_spark

    of_spark.register_pickle_by_value(stepping)
    with tempfile.TemporaryDirectory() as folder, started(folder) as session:
        spark = OnSpark(session, given.rows)
        ways: tuple[Callable[[], Any], ...] = (
            *(spark.barrier, spark.empty_job, spark.steps_alone, spark.steps_on_spark),
            *(spark.row_by_row, spark.by_batches, spark.loss_of_executor),
            spark.task_after_loss,
        )
        rounds = []
        # The first round does not count: executors start their first processes in it, which import what they need.
        for number in range(given.rounds + 1):
            rounds.append(_measured(ways, f"round {number} of {given.rounds}"))

    def table(median: Median) -> dict[str, float]:
        return {
            "an empty barrier stage of 2 tasks, in seconds": median(lambda each: each["barrier"]),
            "farandole.spark.run of an empty function, beyond it": median(
                lambda each: each["empty_job"] - each["barrier"]
            ),
            "a killed executor, until the survivor's next step": median(
                lambda each: each["loss_of_executor"]["survivor"]
            ),
            "Spark's new executor, until its first Python task": median(lambda each: each["task_after_loss"]),
            "until farandole's new worker is called there, beyond it": median(
                lambda each: each["loss_of_executor"]["called"] - each["task_after_loss"]
            ),
            "from that worker's init() to its first step": median(lambda each: each["loss_of_executor"]["joined"]),
            "time of steps on Spark, as a ratio to farandole.run": median(
                lambda each: each["steps_on_spark"][0] / each["steps_alone"][0]
            ),
            "processor time of these steps, as a ratio": median(
                lambda each: each["steps_on_spark"][1] / each["steps_alone"][1]
            ),
            f"transform row by row, as a ratio to batches of {BATCH}": median(
                lambda each: each["row_by_row"] / each["by_batches"]
            ),
        }

    report(rounds[1:], table, given.json)


def _measured(ways: tuple[Callable[[], Any], ...], title: str) -> dict[str, Any]:
    """Measure all once; print each time at once, because some take long."""
    seconds = {}
    for way in ways:
        seconds[way.__name__] = way()
        print(f"{title}: {way.__name__}: {seconds[way.__name__]}", flush=True)
    return seconds


if __name__ == "__main__":
    main()

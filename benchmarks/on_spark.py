"""What farandole adds to Spark's own times, on executors of this machine.

    .venv-frameworks/spark/bin/python -m benchmarks.on_spark [--rounds N] [--rows N] [--json FILE]

Each time of farandole's is printed beside the time that Spark takes alone for the same tasks, measured in turn; steps
are compared with the same steps under `farandole.run`, and `transform` with a model that is called for each row. It
needs PySpark and PyTorch: the environment that `make test-spark` makes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

STEPS = 2000
NUMBERS = 100_000
ROWS = 20_000
BATCH = 256


class Measured:
    """The ways that are measured, with one session of Spark.

    Args:
        spark: the session.
        rows: the number of rows that are transformed.
    """

    def __init__(self, spark: Any, rows: int) -> None:
        self._context = spark.sparkContext
        self._frame = spark.range(rows).selectExpr("cast(id as double) / 1000 as a").cache()
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

    def steps_on_spark(self) -> float:
        """Return the seconds of many sums in tasks of Spark."""
        import farandole.spark

        return float(farandole.spark.run(steps, num_proc=2, verbose=0)[0])

    def steps_alone(self) -> float:
        """Return the seconds of these sums under farandole's launcher on this machine."""
        import farandole

        return float(farandole.run(steps, num_proc=2)[0])

    def by_batches(self) -> float:
        """Return the seconds of `transform` by batches."""
        return self._transform(BATCH)

    def row_by_row(self) -> float:
        """Return the seconds of `transform` with a call of the model for each row."""
        return self._transform(1)

    def _transform(self, batch: int) -> float:
        import torch

        from farandole.spark.torch import TorchModel

        layers = (torch.nn.Unflatten(0, (-1, 1)), torch.nn.Linear(1, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
        model = TorchModel(model=torch.nn.Sequential(*layers), feature_cols=["a"], label_cols=["y"], batch_size=batch)
        began = time.monotonic()
        model.transform(self._frame).write.format("noop").mode("overwrite").save()
        return time.monotonic() - began


def nothing() -> None:
    """Do nothing."""


def steps() -> float:
    """Return the seconds of many sums over all workers. Run by a worker."""
    import numpy as np

    import farandole.numpy as hvd

    hvd.init()
    numbers = np.ones(NUMBERS, np.float32)
    hvd.allreduce(numbers, name="first")
    began = time.monotonic()
    for _ in range(STEPS):
        hvd.allreduce(numbers, name="numbers")
    return time.monotonic() - began


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
    with tempfile.TemporaryDirectory() as folder, started(folder) as session:
        measured = Measured(session, given.rows)
        ways: tuple[Callable[[], float], ...] = (
            *(measured.barrier, measured.empty_job, measured.steps_alone, measured.steps_on_spark),
            *(measured.row_by_row, measured.by_batches),
        )
        for way in ways:
            way()  # Executors start their first processes, which import what they need.
        rounds = [{way.__name__: way() for way in ways} for _ in range(given.rounds)]

    def median(value: Callable[[dict[str, float]], float]) -> float:
        return statistics.median(value(each) for each in rounds)

    results = {
        "an empty barrier stage of 2 tasks, in seconds": median(lambda each: each["barrier"]),
        "farandole.spark.run of an empty function, beyond it": median(lambda each: each["empty_job"] - each["barrier"]),
        "time of steps on Spark, as a ratio to farandole.run": median(
            lambda each: each["steps_on_spark"] / each["steps_alone"]
        ),
        f"transform row by row, as a ratio to batches of {BATCH}": median(
            lambda each: each["row_by_row"] / each["by_batches"]
        ),
    }
    print(f"medians of {given.rounds} rounds; load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for name, value in results.items():
        print(f"  {name:60} {value:7.3f}")
    if given.json:
        given.json.write_text(json.dumps({"medians": results, "rounds": rounds}, indent=1))


if __name__ == "__main__":
    main()

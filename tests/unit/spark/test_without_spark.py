"""What jobs on Spark decide without Spark."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from typing import Any

import pytest

from farandole.errors import SpecError
from farandole.spark import driver, fixed, growing, use_spark


class Conf:
    def __init__(self, values: dict[str, str]) -> None:
        self._values = values

    def get(self, name: str, default: str | None = None) -> str | None:
        return self._values.get(name, default)


class Context:
    """A SparkContext with settings."""

    defaultParallelism = 4

    def __init__(self, **values: str) -> None:
        self._values = {f"spark.dynamicAllocation.{name}": value for name, value in values.items()}

    def getConf(self) -> Conf:
        return Conf(self._values)


ALLOCATION = {"enabled": "true", "minExecutors": "2", "maxExecutors": "8"}


@pytest.mark.parametrize(
    ("context", "given", "expected"),
    [
        (Context(), (None, None, None), (4, 4, 4)),
        (Context(), (3, None, None), (3, 3, 3)),
        (Context(), (3, 1, 5), (3, 1, 5)),
        (Context(), (None, 2, None), (2, 2, 2)),
        (Context(**ALLOCATION), (4, None, None), (4, 2, 8)),
        (Context(**{**ALLOCATION, "minExecutors": "0", "maxExecutors": "x"}), (4, None, None), (4, 4, 4)),
        (Context(**{**ALLOCATION, "enabled": "false"}), (4, None, None), (4, 4, 4)),
    ],
)
def test_sizes_of_elastic_jobs(context: Any, given: Any, expected: Any) -> None:
    assert growing.sizes(context, *given) == expected


@pytest.mark.parametrize("given", [(3, 4, None), (3, None, 2)])
def test_sizes_that_contradict_each_other_are_refused(given: Any) -> None:
    with pytest.raises(SpecError, match="contradict each other"):
        growing.sizes(Context(), *given)


@pytest.mark.parametrize("given", [(3, 0, None), (-1, None, None), ("3", None, None), (3, None, "4"), (3, 2.5, None)])
def test_sizes_that_are_not_positive_integers_are_refused(given: Any) -> None:
    with pytest.raises(SpecError, match="is not a number of workers"):
        growing.sizes(Context(), *given)


def test_seconds_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOROVOD_SPARK_START_TIMEOUT", raising=False)
    assert driver.start_seconds(None) == 600
    monkeypatch.setenv("HOROVOD_SPARK_START_TIMEOUT", "20")
    assert (driver.start_seconds(None), driver.start_seconds(5)) == (20, 5)
    monkeypatch.setenv("HOROVOD_SPARK_START_TIMEOUT", "soon")
    with pytest.raises(SpecError, match="HOROVOD_SPARK_START_TIMEOUT=soon is not a number"):
        driver.start_seconds(None)


def test_variables_for_workers_may_be_numbers() -> None:
    options = driver.Options.read(1, {"N": 1, "GONE": None}, None, None, 1, False, None, (0,))  # type: ignore[dict-item]
    assert options.env == {"N": "1", "GONE": None}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "An error occurred while calling z:collectAndServe.\n: org.apache.spark.SparkException: Job aborted due to "
            "stage failure: ExecutorLostFailure\nDriver stacktrace:\n\tat org.apache",
            "Job aborted due to stage failure: ExecutorLostFailure",
        ),
        ("Cannot call methods on a stopped SparkContext.\nIt was", "Cannot call methods on a stopped SparkContext."),
    ],
)
def test_sparks_reason_is_one_line(text: str, why: str) -> None:
    assert use_spark.why_it_failed(RuntimeError(text)) == why


@pytest.mark.skipif(importlib.util.find_spec("pyspark") is not None, reason="PySpark is installed")
def test_without_pyspark_the_next_step_is_told() -> None:
    with pytest.raises(SpecError, match=r"PySpark is not installed \(hint: pip install 'farandole\[spark\]'\)"):
        fixed.run(print)
    with pytest.raises(ModuleNotFoundError, match=r"needs pyspark, .* Run: pip install 'farandole\[spark\]'"):
        importlib.import_module("farandole.spark.estimator")


def test_without_a_spark_context_the_next_step_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message begins as Horovod's, which scripts look for."""
    pyspark: Any = types.ModuleType("pyspark")
    pyspark.SparkContext = types.SimpleNamespace(_active_spark_context=None)
    monkeypatch.setitem(sys.modules, "pyspark", pyspark)
    monkeypatch.setattr(use_spark, "_check_installed", lambda: None)
    monkeypatch.setattr(use_spark, "connect_session", lambda: None)
    with pytest.raises(SpecError, match=r"^Could not find an active SparkContext.*SparkSession\.builder\.getOrCreate"):
        use_spark.active_context()

"""Backends: where an estimator's training function runs."""

from __future__ import annotations

import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from farandole.control.launcher.arguments import read_count
from farandole.errors import SpecError
from farandole.spark.driver import read_environment
from farandole.spark.fixed import run
from farandole.spark.growing import run_elastic
from farandole.spark.use_spark import active_context

# The connection of this process to Spark, and its GPUs, are not the workers'.
_OF_THE_DRIVER = ("CUDA_VISIBLE_DEVICES", "PYSPARK_", "SPARK_")


class Backend(ABC):
    """Runs a function on several workers. A subclass can train elsewhere than on Spark."""

    @abstractmethod
    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Call `fn(*args, **kwargs)` on all workers, with additional variables, and return the results by rank."""

    @abstractmethod
    def num_processes(self) -> int:
        """Return the number of workers; for an elastic job, the initial one."""


def _read_limits(given: Any) -> tuple[int, int]:
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise SpecError(f"elastic={given!r:.80} is not a pair of numbers", "give (least, most) workers: elastic=(2, 8)")
    least, most = (read_count("elastic", each) for each in given)
    if least > most:
        raise SpecError(f"elastic={given!r} has more workers at least than at most", "give (least, most) workers")
    return least, most


def _check_options(given: Mapping[str, Any], function: Callable[..., Any]) -> None:
    parameters = inspect.signature(function).parameters.values()
    known = {each.name for each in parameters if each.kind is each.KEYWORD_ONLY} - {"env"}
    if unknown := [name for name in given if name not in known]:
        raise TypeError(f"SparkBackend has no option {unknown[0]!r}: there are {', '.join(sorted(known))}")


class SparkBackend(Backend):
    """Runs the function in tasks of Spark.

    Args:
        num_proc: the number of workers; None: Spark's default parallelism.
        env: variables for the workers; None: those of the driver except CUDA_VISIBLE_DEVICES.
        elastic: the minimum and maximum numbers of workers of an elastic job; None: the number is fixed.
        options: other arguments of `farandole.spark.run` or `run_elastic`.

    Raises:
        SpecError: an argument is not valid.
        TypeError: there is no such option.
    """

    def __init__(
        self,
        num_proc: int | None = None,
        env: Mapping[str, str] | None = None,
        elastic: tuple[int, int] | None = None,
        **options: Any,
    ) -> None:
        self._size = None if num_proc is None else read_count("num_proc", num_proc)
        self._env = None if env is None else read_environment(env)
        self._elastic = None if elastic is None else _read_limits(elastic)
        _check_options(options, run if elastic is None else run_elastic)
        self._options = options

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Call `fn(*args, **kwargs)` on all workers, and return the results by rank."""
        own = os.environ if self._env is None else self._env
        variables = {name: value for name, value in own.items() if not name.startswith(_OF_THE_DRIVER)} | dict(
            env or {}
        )
        if self._elastic is None:
            return run(fn, args, kwargs, self._size, env=variables, **self._options)
        least, most = self._elastic
        return run_elastic(fn, args, kwargs, self._size, least, most, env=variables, **self._options)

    def num_processes(self) -> int:
        """Return the number of workers."""
        if self._elastic is not None:
            return self._size or self._elastic[0]
        return self._size or int(active_context().defaultParallelism)

"""`HorovodRunner`, with the interface that notebooks on Databricks use."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from farandole.control.launcher.function import run as run_here
from farandole.errors import SpecError
from farandole.spark.fixed import run

_VERBOSITIES = ("all", "log_callback_only")


class HorovodRunner:
    """Runs a training function on a Spark cluster, or on several workers of the driver's machine.

    Args:
        np: the number of workers; 0: Spark's default parallelism; below 0: the number of workers on the driver's
            machine, without Spark.
        driver_log_verbosity: "all" to print the workers' output; "log_callback_only" to omit it.

    Raises:
        SpecError: an argument is not valid.

    Example:
        >>> HorovodRunner(np=2).run(train, learning_rate=0.01)  # doctest: +SKIP
    """

    def __init__(self, *, np: int, driver_log_verbosity: str = "log_callback_only") -> None:
        if driver_log_verbosity not in _VERBOSITIES:
            raise SpecError(
                f"driver_log_verbosity={driver_log_verbosity!r} is not valid", f"choose from {', '.join(_VERBOSITIES)}"
            )
        if not isinstance(np, int):
            raise SpecError(f"np={np!r:.80} is not a number of workers", "give an integer, for example np=2")
        self._size = np
        self._prints = driver_log_verbosity == "all"

    def run(self, main: Callable[..., Any], **kwargs: Any) -> Any:
        """Call `main(**kwargs)` in every worker, and return rank 0's value.

        Raises:
            SpecError: there is no SparkContext.
            JobFailed: a worker failed.
        """
        if self._size < 0:
            return run_here(main, kwargs=kwargs, num_proc=-self._size)[0]
        nowhere = None if self._prints else io.StringIO()
        return run(main, kwargs=kwargs, num_proc=self._size or None, stdout=nowhere, stderr=nowhere)[0]

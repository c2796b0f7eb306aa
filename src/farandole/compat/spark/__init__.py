"""`horovod.spark`: `run` and `run_elastic` with Horovod's arguments."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from farandole.base.display.wording import horovods_failure
from farandole.compat.runner import with_names
from farandole.compat.spark import conf, task
from farandole.errors import JobFailed, SpecError
from farandole.spark import fixed, growing

__all__ = ["conf", "run", "run_elastic", "task"]


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    start_timeout: float | None = None,
    use_mpi: bool | None = None,
    use_gloo: bool | None = None,
    extra_mpi_args: str | None = None,
    env: Mapping[str, str | None] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    verbose: int = 1,
    nics: Any = None,
    prefix_output_with_timestamp: bool = False,
    executable: str | None = None,
) -> list[Any]:
    """Call a function on workers in tasks of Spark, and return the results by rank.

    The same as `farandole.spark.run`, with Horovod's arguments.

    Args:
        fn: called in every worker as `fn(*args, **kwargs)`.
        args: positional arguments.
        kwargs: keyword arguments.
        num_proc: number of workers; None: Spark's default parallelism.
        start_timeout: seconds to wait for all tasks.
        use_mpi: must be false: workers in tasks of Spark are not started by mpirun.
        use_gloo: ignored; there is no other way.
        extra_mpi_args: must be None, because MPI is not used.
        env: variables for the workers.
        stdout: the stream for the workers' output.
        stderr: the stream for their error output.
        verbose: 0: only output of the workers; 2: every decision.
        nics: ignored; the interfaces are found automatically.
        prefix_output_with_timestamp: whether each line begins with the time.
        executable: the Python interpreter of the workers.

    Raises:
        ValueError: the arguments are not valid, or there is no SparkContext.
        RuntimeError: a worker failed.
    """
    if use_mpi or extra_mpi_args:
        raise SpecError(
            "workers in Spark tasks cannot be started by mpirun, so use_mpi and extra_mpi_args are not valid",
            "omit them",
        )
    with _horovods_words():
        return fixed.run(
            with_names(fn),
            args,
            kwargs,
            num_proc,
            start_timeout=start_timeout,
            env=env,
            stdout=stdout,
            stderr=stderr,
            verbose=verbose,
            prefix_output_with_timestamp=prefix_output_with_timestamp,
            executable=executable,
        )


def run_elastic(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    start_timeout: float | None = None,
    elastic_timeout: float | None = None,
    reset_limit: int | None = None,
    env: Mapping[str, str | None] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    verbose: int = 1,
    nics: Any = None,
    prefix_output_with_timestamp: bool = False,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Call a function with an elastic loop on workers in tasks of Spark, and return the results by rank.

    The same as `farandole.spark.run_elastic`, with Horovod's arguments.

    Args:
        fn: called in every worker as `fn(*args, **kwargs)`.
        args: positional arguments.
        kwargs: keyword arguments.
        num_proc: number of workers at the beginning; None: Spark's default parallelism.
        min_num_proc: the minimum number of workers; None: `num_proc`.
        max_num_proc: the maximum number of workers; None: `num_proc`.
        start_timeout: seconds that a task tries to reach the launcher.
        elastic_timeout: seconds to wait for `min_num_proc` workers.
        reset_limit: the maximum number of worlds after the first one.
        env: variables for the workers.
        stdout: the stream for the workers' output.
        stderr: the stream for their error output.
        verbose: 0: only output of the workers; 2: every decision.
        nics: ignored; the interfaces are found automatically.
        prefix_output_with_timestamp: whether each line begins with the time.
        min_np: deprecated name of `min_num_proc`.
        max_np: deprecated name of `max_num_proc`.

    Raises:
        ValueError: the arguments are not valid, or there is no SparkContext.
        RuntimeError: the job cannot continue.
    """
    for name, value in (("min", min_np), ("max", max_np)):
        if value is not None:
            warnings.warn(f"{name}_np= is deprecated: use {name}_num_proc=", DeprecationWarning, stacklevel=2)
    with _horovods_words():
        return growing.run_elastic(
            with_names(fn),
            args,
            kwargs,
            num_proc,
            min_np if min_num_proc is None else min_num_proc,
            max_np if max_num_proc is None else max_num_proc,
            start_timeout=start_timeout,
            elastic_timeout=elastic_timeout,
            reset_limit=reset_limit,
            env=env,
            stdout=stdout,
            stderr=stderr,
            verbose=verbose,
            prefix_output_with_timestamp=prefix_output_with_timestamp,
        )


@contextlib.contextmanager
def _horovods_words() -> Iterator[None]:
    """Make the report of a failed worker begin with Horovod's words, because scripts look for them."""
    try:
        yield
    except JobFailed as error:
        if error.rank is None:
            raise
        text = horovods_failure(error.rank, error.exit_code)
        raise JobFailed(f"{text}{error}", error.rank, error.exit_code) from error.__cause__

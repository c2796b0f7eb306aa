"""`farandole.spark.run`: a function on a fixed number of workers, each in a task of Spark."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from farandole.control.launcher.agents.reception import HostsMissing
from farandole.control.launcher.arguments import check_call, read_count
from farandole.control.launcher.function import pickle_call, results_of
from farandole.errors import SpecError
from farandole.spark.connect import run_by_connect
from farandole.spark.driver import Options, host_of, run_job, start_thread
from farandole.spark.task import Slot
from farandole.spark.use_spark import (
    active_context,
    adds_executors,
    cancel,
    connect_session,
    what_ended_spark,
    why_dialer_ended,
    why_it_failed,
)

_END_SECONDS = 30.0
_numbers = itertools.count()


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    *,
    start_timeout: float | None = None,
    env: Mapping[str, str | None] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    verbose: int = 1,
    prefix_output_with_timestamp: bool = False,
    executable: str | None = None,
    ports: Iterable[int] = (0,),
) -> list[Any]:
    """Run a function on workers in tasks of Spark, and return the results by rank.

    Spark starts all tasks at the same time (a barrier stage), unless it adds executors as they are needed. Each worker
    is a child process of its task. If a worker fails, the job ends. The lines that workers print appear here, prefixed
    with their rank; on Spark Connect, the last ones when the job has ended.

    Args:
        fn: the function, called in every worker as `fn(*args, **kwargs)`. It is pickled by cloudpickle.
        args: positional arguments.
        kwargs: keyword arguments.
        num_proc: number of workers; None: Spark's default parallelism. Spark Connect needs a number.
        start_timeout: seconds to wait for all tasks; None: HOROVOD_SPARK_START_TIMEOUT, or 600.
        env: variables for the workers, in addition to those of the executors; None as a value removes one.
        stdout: the object with `write` that the workers' output is written to; None: the stdout of this process.
        stderr: the same for the workers' error output.
        verbose: 0 to print only the workers' output, 1 also messages for the user, 2 also the launcher's decisions.
        prefix_output_with_timestamp: whether each line begins with the time.
        executable: the Python interpreter of the workers; None: the interpreter of the executors.
        ports: the ports to try in the driver; the launcher listens on the first free one. 0: any free port.

    Raises:
        SpecError: there is neither a SparkContext nor a session of Spark Connect, or an argument is not valid.
        HostsMissing: too few tasks have started in time.
        JobFailed: a worker failed, or Spark has lost its task. The text describes the first failure. If the function
            raised an exception that could be pickled, it is the `__cause__`.

    Example:
        >>> farandole.spark.run(train, args=(0.01,), num_proc=4)  # doctest: +SKIP
    """
    check_call(fn, args, {} if kwargs is None else kwargs)
    session = connect_session()
    num_proc = _default_size(session, verbose) if num_proc is None else read_count("num_proc", num_proc)
    options = Options.read(start_timeout, env, stdout, stderr, verbose, prefix_output_with_timestamp, executable, ports)
    call = pickle_call(fn, args, kwargs or {})
    try:
        if session is not None:
            outcome = run_by_connect(session, call, num_proc, options)
        else:
            context = active_context()
            outcome = run_job(host_of(context), Stage(context, num_proc), call, num_proc, None, options)
    except HostsMissing as error:
        raise HostsMissing(
            f"Timed out waiting for Spark tasks to start: {error.message}",
            f"check that {num_proc} cores are free (spark.task.cpus for each worker), that executors have farandole, "
            f"and that they reach the driver. Ask for fewer workers, or wait longer with start_timeout=. {error.hint}",
        ) from error
    return results_of(outcome)


def _default_size(session: Any, verbose: int) -> int:
    if session is not None:
        raise SpecError("Spark Connect does not tell its default parallelism", "give the number of workers: num_proc=")
    size = int(active_context().defaultParallelism)
    if verbose:
        print(f"farandole: {size} workers, as many as Spark's default parallelism", file=sys.stderr)
    return size


def new_group(what: str) -> str:
    """Return the name of a new job group of Spark."""
    return f"farandole.spark.{what}.{next(_numbers)}"


class Stage:
    """The tasks of a job of fixed size: one stage of one Spark job.

    Args:
        context: the SparkContext.
        size: the number of tasks.
    """

    def __init__(self, context: Any, size: int) -> None:
        self._context = context
        self._size = size
        self._group = new_group("run")
        self._failure = ""
        self._cancelled = False
        self._thread: Any = None

    def begin(self, slot: Slot) -> None:
        """Make Spark start the tasks."""

        def work() -> None:
            try:
                self._context.setJobGroup(self._group, f"{self._size} workers of farandole", interruptOnCancel=True)
                rows = self._context.parallelize(range(self._size), self._size)
                # Tasks of a barrier stage start together or not at all, but Spark does not add executors for them.
                stage = rows if adds_executors(self._context) else rows.barrier()
                codes = stage.mapPartitionsWithIndex(slot).collect()
                self._failure = next(filter(None, itertools.starmap(why_dialer_ended, enumerate(codes))), "")
            except Exception as error:
                if not self._cancelled:
                    ended = what_ended_spark(self._context)
                    self._failure = ended or f"Spark ended the tasks of the workers: {why_it_failed(error)}"

        self._thread = start_thread(work, self._group)

    def failure(self) -> str:
        """Return why Spark cannot run tasks; "": it can."""
        return self._failure

    def end(self, patience: float) -> None:
        """End the tasks, and wait until Spark has ended them."""
        if self._thread is None:
            return
        self._thread.join(patience)
        if self._thread.is_alive():
            self._cancelled = True
            cancel(self._context, self._group)
            self._thread.join(_END_SECONDS)

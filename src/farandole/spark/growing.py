"""`farandole.spark.run_elastic`: a function with an elastic loop, on workers that join and leave with Spark's
executors.

Each slot is a Spark job of one task, which is submitted again when it ends. So Spark's limits of failures in a job do
not apply, and a lost executor costs the job one slot until Spark has another one.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from farandole.control.launcher.arguments import check_call, read_count, read_number
from farandole.control.launcher.function import pickle_call, results_of
from farandole.control.launcher.job.elastic import DIAL, Elastic, read_elastic_timeout
from farandole.errors import SpecError
from farandole.spark.driver import Options, host_of, run_job, start_thread
from farandole.spark.fixed import new_group
from farandole.spark.task import Slot
from farandole.spark.use_spark import active_context, adds_executors, cancel, what_ended_spark, why_it_failed

_END_SECONDS = 30.0
# Seconds before a slot whose task has ended is submitted again.
_REST_SECONDS = 1.0
# Consecutive failures of each slot after which Spark is assumed to have no room for the job.
_MOST_FAILURES = 20


def run_elastic(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    *,
    start_timeout: float | None = None,
    elastic_timeout: float | None = None,
    reset_limit: int | None = None,
    env: Mapping[str, str | None] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    verbose: int = 1,
    prefix_output_with_timestamp: bool = False,
    executable: str | None = None,
    ports: Iterable[int] = (0,),
) -> list[Any]:
    """Run a function with an elastic loop on workers in tasks of Spark, and return the results by rank.

    When a task, its process or its executor is lost, the other workers continue, and another worker joins as soon as
    Spark has a place for it.

    Args:
        fn: the function, called in every worker as `fn(*args, **kwargs)`. It is pickled by cloudpickle.
        args: positional arguments.
        kwargs: keyword arguments.
        num_proc: the most workers of the first world, which begins with `min_num_proc` if others come later; None:
            Spark's default parallelism.
        min_num_proc: the minimum number of workers; with fewer, the job waits. None: `num_proc`, or with dynamic
            allocation its minimum.
        max_num_proc: the maximum number of workers; None: `num_proc`, or with dynamic allocation its maximum.
        start_timeout: seconds that a task tries to reach the launcher; None: HOROVOD_SPARK_START_TIMEOUT, or 600.
        elastic_timeout: seconds to wait for `min_num_proc` workers, at the beginning and after a loss; None:
            FARANDOLE_ELASTIC_TIMEOUT or HOROVOD_ELASTIC_TIMEOUT, or 600.
        reset_limit: the maximum number of worlds after the first one; None: no limit.
        env: variables for the workers, in addition to those of the executors; None as a value removes one.
        stdout: the object with `write` that the workers' output is written to; None: the stdout of this process.
        stderr: the same for the workers' error output.
        verbose: 0 to print only the workers' output, 1 also messages for the user, 2 also the launcher's decisions.
        prefix_output_with_timestamp: whether each line begins with the time.
        executable: the Python interpreter of the workers; None: the interpreter of the executors.
        ports: the ports to try in the driver; the launcher listens on the first free one. 0: any free port.

    Raises:
        SpecError: there is no SparkContext, or an argument is not valid.
        JobFailed: the job cannot continue; the text describes the first failure.

    Example:
        >>> farandole.spark.run_elastic(train, num_proc=4, min_num_proc=2, max_num_proc=8)  # doctest: +SKIP
    """
    check_call(fn, args, {} if kwargs is None else kwargs)
    if elastic_timeout is not None:
        elastic_timeout = read_number("elastic_timeout", elastic_timeout, "seconds")
    if reset_limit is not None:
        reset_limit = read_count("reset_limit", reset_limit, "worlds", least=0)
    context = active_context()
    size, least, most = sizes(context, num_proc, min_num_proc, max_num_proc)
    seconds = read_elastic_timeout(elastic_timeout, os.environ)
    elastic = Elastic(least, most, discovery=DIAL, timeout=seconds, reset_limit=reset_limit)
    options = Options.read(start_timeout, env, stdout, stderr, verbose, prefix_output_with_timestamp, executable, ports)
    call = pickle_call(fn, args, kwargs or {})
    tasks = Slots(context, most)
    return results_of(run_job(host_of(context), tasks, call, size, elastic, options))


def sizes(context: Any, size: int | None, least: int | None, most: int | None) -> tuple[int, int, int]:
    """Return the initial, minimum and maximum numbers of workers.

    Raises:
        SpecError: one is not an integer above 0, or they contradict each other.
    """
    for name, given in (("num_proc", size), ("min_num_proc", least), ("max_num_proc", most)):
        if given is not None:
            read_count(name, given)
    allocation = adds_executors(context)
    size = size or least or int(context.defaultParallelism)

    def from_allocation(bound: str) -> int:
        given = context.getConf().get(f"spark.dynamicAllocation.{bound}Executors", "") if allocation else ""
        return int(given) if given.isdecimal() and int(given) > 0 else size

    least = min(size, from_allocation("min")) if least is None else least
    most = max(size, from_allocation("max")) if most is None else most
    if not 0 < least <= size <= most:
        raise SpecError(
            f"{least} (least), {size} and {most} (most) workers contradict each other",
            "give min_num_proc <= num_proc <= max_num_proc",
        )
    return size, least, most


class Slots:
    """Spark jobs of one task each, which are submitted again when they end.

    Args:
        context: the SparkContext.
        size: the number of slots.
    """

    def __init__(self, context: Any, size: int) -> None:
        self._context = context
        self._size = size
        self._group = new_group("run_elastic")
        self._over = threading.Event()
        self._failures = [""] * size
        """The reason of each slot that has given up, by its number."""
        self._ended = ""
        """What has ended Spark itself."""
        self._threads: list[threading.Thread] = []

    def begin(self, slot: Slot) -> None:
        """Make Spark start the tasks."""
        for number in range(self._size):
            self._threads.append(start_thread(partial(self._serve, slot, number), f"farandole-{number}"))

    def failure(self) -> str:
        """Return why Spark cannot run tasks; "": it can."""
        return self._ended or (self._failures[0] if all(self._failures) else "")

    def end(self, patience: float) -> None:
        """End the tasks, and wait until Spark has ended them."""
        self._over.set()
        deadline = time.monotonic() + patience
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            cancel(self._context, self._group)
            for thread in self._threads:
                thread.join(_END_SECONDS)

    def _serve(self, slot: Slot, number: int) -> None:
        self._context.setJobGroup(self._group, "workers of an elastic job of farandole", interruptOnCancel=True)
        failures = attempt = 0
        while not (self._over.is_set() or self._ended) and failures < _MOST_FAILURES:
            attempt += 1
            why = self._submit(slot, f"task-{number}-{attempt}")
            if why and not self._over.is_set():
                self._ended = self._ended or what_ended_spark(self._context)
            failures = failures + 1 if why else 0
            if failures == _MOST_FAILURES:
                self._failures[number] = f"Spark has failed to run a task {failures} times; the last reason: {why}"
            self._over.wait(_REST_SECONDS)

    def _submit(self, slot: Slot, name: str) -> str:
        """Run one task, and return why it failed; "": it did not fail."""

        def task(_: Iterable[Any]) -> Iterator[int]:
            from pyspark import TaskContext

            # Each attempt is a host of its own: the previous attempt may not have ended yet.
            context = TaskContext.get()
            yield slot.serve(f"{name}-{0 if context is None else context.attemptNumber()}")

        try:
            self._context.parallelize([0], 1).mapPartitions(task).collect()
        except Exception as error:
            return why_it_failed(error)
        return ""

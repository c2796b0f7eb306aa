"""`farandole.ray.run`: an elastic job on a Ray cluster. The launcher runs in the driver."""

from __future__ import annotations

import contextlib
import pickle
import queue
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from farandole.base.wire.address import format_address
from farandole.control.launcher.agents.reception import Reception
from farandole.control.launcher.arguments import check_call, check_callbacks, check_flag, read_variables
from farandole.control.launcher.function import BackgroundJob, call_command, in_program, pickle_call, results_of
from farandole.control.launcher.job.dialed_hosts import DialedHosts
from farandole.control.launcher.job.elastic import Elastic
from farandole.control.launcher.job.machine import Machine
from farandole.control.launcher.job.spec import LaunchSpec
from farandole.control.launcher.output.console import Console, text_writer
from farandole.control.launcher.start.launch import launch
from farandole.control.launcher.supervise.outcome import JobOutcome, Observer
from farandole.ray import through_client
from farandole.ray.host_actors import Demand, HostActors
from farandole.ray.use_ray import use_ray

_SECRET_BYTES = 32
_REST_SECONDS = 0.1
_HOSTS = DialedHosts(
    lost="ray list nodes and ray list actors show whether the node or the actor of {host} has ended, and why",
    install="install it in the environment of Ray's workers on {host}",
)
Callbacks = Sequence[Callable[[Any], Any]]


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    min_workers: int = 1,
    max_workers: int | None = None,
    cpus_per_worker: float = 1,
    gpus_per_worker: float = 0,
    env: Mapping[str, str] | None = None,
    callbacks: Callbacks = (),
    elastic_timeout: float = 600,
    reset_limit: int | None = None,
    cooldown_range: tuple[float, float] | None = None,
    verbose: bool = False,
) -> list[Any]:
    """Run a function with an elastic loop on workers that join and leave with the nodes of a Ray cluster.

    It connects to the cluster if the program has not done so. Workers are processes beside Ray's own; one that needs
    Ray calls `ray.init(address="auto")`. Missing resources are requested, and used as soon as they are available.

    Args:
        fn: the function, called in every worker as `fn(*args, **kwargs)`.
        args: positional arguments.
        kwargs: keyword arguments.
        min_workers: the minimum number of workers; with fewer, the job waits.
        max_workers: the maximum number of workers; None: as many as the cluster has room for.
        cpus_per_worker: CPUs of each worker.
        gpus_per_worker: GPUs of each worker.
        env: variables for the workers, in addition to those of Ray's processes; numbers are converted to text.
        callbacks: functions that are called, in this thread, with each value that a worker passes to
            `farandole.report`.
        elastic_timeout: seconds to wait for `min_workers`, at the beginning and after a loss.
        reset_limit: the maximum number of worlds after the first one; None: no limit.
        cooldown_range: the shortest and the longest time, in seconds, that a failed slot is not used.
        verbose: whether to print every decision of the launcher.

    Returns:
        The values of the workers that have finished, by rank.

    Raises:
        SpecError: an argument is not valid.
        TimeoutError: the resources of `min_workers` are not available in time.
        JobFailed: the workers failed; the text describes the first failure.
    """
    check_call(fn, args, {} if kwargs is None else kwargs)
    check_callbacks(callbacks)
    check_flag("verbose", verbose)
    env = read_variables("env", env)
    demand = Demand(min_workers, max_workers, cpus_per_worker, gpus_per_worker)
    elastic = demand.limits(elastic_timeout, reset_limit, cooldown_range)
    if not use_ray().is_initialized():
        use_ray().init()
    if through_client.is_connected():
        options: dict[str, Any] = {
            "min_workers": min_workers,
            "max_workers": max_workers,
            "cpus_per_worker": cpus_per_worker,
            "gpus_per_worker": gpus_per_worker,
            "env": env,
            "elastic_timeout": elastic_timeout,
            "reset_limit": reset_limit,
            "cooldown_range": cooldown_range,
            "verbose": verbose,
        }
        driver = through_client.Driver(None)
        try:
            return driver.call(lambda _, passing: run(fn, args, kwargs, callbacks=passing, **options), callbacks)
        finally:
            driver.end()
    # Before resources are reserved: what cannot be pickled is refused at once.
    call = pickle_call(fn, args, {} if kwargs is None else kwargs)
    hosts = HostActors(demand)
    try:
        hosts.reserve(elastic.timeout)
        return results_of(run_on_hosts(hosts, launch_of_call(elastic), env, callbacks, call, verbose=verbose))
    finally:
        hosts.release()


def launch_of_call(elastic: Elastic) -> LaunchSpec:
    """Return the launch of a function, with the job's limits."""
    return LaunchSpec(call_command(), elastic.min_size, elastic=elastic, dialed=_HOSTS)


def run_on_hosts(
    hosts: HostActors,
    spec: LaunchSpec,
    environment: Mapping[str, str],
    callbacks: Callbacks = (),
    call: bytes | None = None,
    *,
    verbose: bool = False,
) -> JobOutcome:
    """Run a job to its end on hosts. The resources of the minimum number of workers must be reserved.

    Args:
        hosts: the hosts, which dial.
        spec: the launch of the job.
        environment: variables for the hosts and their workers.
        callbacks: functions that are called, in this thread, with each value that a worker reports.
        call: the pickled call that the workers fetch, if they run a function.
        verbose: whether to print every decision of the launcher.
    """
    secret = secrets.token_bytes(_SECRET_BYTES)
    reception = Reception([0], lambda: secret)
    # Workers inherit from Ray's processes on their machine, and nothing from this one.
    machine = Machine("driver", 1, 0, "/", {})
    values: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    job = BackgroundJob()
    try:
        address = format_address(use_ray().util.get_node_ip_address(), reception.listen())
        hosts.begin(address, secret, environment)
        console = Console(text_writer(sys.stdout), text_writer(sys.stderr))
        job.begin(
            launch(
                in_program(spec),
                machine,
                console,
                started=job.started,
                call=call,
                verbose=verbose,
                observer=_Values(values),
                reception=reception,
            )
        )
        return _wait(job, hosts, values, callbacks)
    finally:
        reception.stop_listening()
        hosts.end()


class _Values(Observer):
    """Queues reported values for the thread of the caller."""

    def __init__(self, values: queue.SimpleQueue[bytes]) -> None:
        self._values = values

    def value_reported(self, rank: int | None, payload: bytes) -> None:
        """Queue a value."""
        self._values.put(payload)


def _wait(job: BackgroundJob, hosts: HostActors, values: queue.SimpleQueue[bytes], callbacks: Callbacks) -> JobOutcome:
    """Pass values to the callbacks until the job has ended; end it if a callback fails, or the user interrupts."""
    outcome: Future[JobOutcome] = job.outcome
    try:
        while not outcome.done():
            # Values may come faster than they are passed on: hosts are tended in any case.
            rest_until = time.monotonic() + _REST_SECONDS
            while (rest := rest_until - time.monotonic()) > 0:
                with contextlib.suppress(queue.Empty):
                    _pass_on(values.get(timeout=rest), callbacks)
            hosts.tend()
        while not values.empty():
            _pass_on(values.get(), callbacks)
    except BaseException:
        job.stop()
        outcome.exception()
        raise
    return outcome.result()


def _pass_on(pickled: bytes, callbacks: Callbacks) -> None:
    value = pickle.loads(pickled)
    for callback in callbacks:
        callback(value)

"""Horovod's interface to elastic jobs on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farandole.base.display.wording import horovods_failure
from farandole.control.launcher.arguments import check_flag
from farandole.control.launcher.function import cause_of, pickle_call, results_of
from farandole.errors import SpecError
from farandole.ray import through_client
from farandole.ray.elastic_run import launch_of_call, run_on_hosts
from farandole.ray.host_actors import Demand, HostActors
from farandole.ray.settings import RaySettings
from farandole.ray.through_client import Driver


@dataclass
class ElasticParams:
    """The arguments of an elastic job."""

    min_workers: int = 1
    max_workers: int | None = None
    reset_limit: int | None = None
    cooldown_range: tuple[float, float] | None = None
    elastic_timeout: float = 600
    override_discovery: bool = True
    cpus_per_worker: int = 1
    use_gpu: bool = False
    gpus_per_worker: int | None = None


class ElasticWorkers:
    """Runs elastic jobs; an `Adapter`.

    Args:
        params: the arguments of the job.
        settings: the settings of the executor.

    Raises:
        SpecError: an argument is not valid.
    """

    def __init__(self, params: ElasticParams, settings: RaySettings) -> None:
        check_flag("use_gpu", params.use_gpu)
        check_flag("override_discovery", params.override_discovery)
        gpus = (params.gpus_per_worker or 1) if params.use_gpu else 0
        if not params.override_discovery and settings.discovery is None:
            raise SpecError(
                "override_discovery=False needs an object that finds hosts",
                "set settings.discovery, or omit override_discovery for the hosts of the Ray cluster",
            )
        discovery = None if params.override_discovery else settings.discovery
        self._demand = Demand(params.min_workers, params.max_workers, params.cpus_per_worker, gpus, discovery)
        self._limits = self._demand.limits(params.elastic_timeout, params.reset_limit, params.cooldown_range)
        self._hosts: HostActors | None = None
        self._driver: Driver[ElasticWorkers] | None = None
        """With Ray Client, what does the rest on the cluster."""
        self._made: tuple[type | None, tuple[Any, ...], dict[str, Any]] = None, (), {}
        self._environment: dict[str, str] = {}

    def start(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, Any] | None = None,
    ) -> None:
        """Wait for the resources of the minimum number of workers. Each worker creates the object when it starts.

        Raises:
            TimeoutError: the resources are not available in time.
        """
        self.shutdown()
        if through_client.is_connected():
            self._driver = Driver(self)
            made = executable_cls, executable_args, executable_kwargs, extra_env_vars
            self._driver.call(lambda workers, _: workers.start(*made))
            return
        self._made = executable_cls, tuple(executable_args or ()), dict(executable_kwargs or {})
        self._environment = {name: str(value) for name, value in (extra_env_vars or {}).items()}
        hosts = self._hosts = HostActors(self._demand)
        hosts.reserve(self._limits.timeout)

    def execute(self, fn: Callable[[Any], Any], callbacks: Sequence[Callable[[Any], Any]] | None = None) -> list[Any]:
        """Run `fn(object)` in each worker, and return the values of those that have finished, by rank."""
        if self._driver is not None:
            return self._driver.call(lambda workers, passing: workers.execute(fn, passing), callbacks or ())
        cls, args, kwargs = self._made
        return self._run(lambda: fn(None if cls is None else cls(*args, **kwargs)), (), {}, callbacks)

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callable[[Any], Any]] | None = None,
    ) -> list[Any]:
        """Run `fn(*args, **kwargs)` in each worker, and return the values of those that have finished, by rank."""
        if self._driver is not None:
            return self._driver.call(lambda workers, passing: workers.run(fn, args, kwargs, passing), callbacks or ())
        return self._run(fn, args or (), kwargs or {}, callbacks)

    def _run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        callbacks: Sequence[Callable[[Any], Any]] | None,
    ) -> list[Any]:
        if self._hosts is None:
            raise RuntimeError("this executor has no workers: call start() first")
        call = pickle_call(fn, args, kwargs)
        outcome = run_on_hosts(self._hosts, launch_of_call(self._limits), self._environment, callbacks or (), call)
        if outcome.exit_code:
            first = horovods_failure(outcome.rank, outcome.exit_code)
            raise RuntimeError(first + outcome.report) from cause_of(outcome)
        return results_of(outcome)

    def run_remote(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Raise an error: workers of an elastic job are not Ray actors.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("An elastic job has no run_remote, because its workers come and go: use run.")

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Raise an error: in an elastic job, rank 0 may change.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("An elastic job has no execute_single, because its workers come and go: use execute.")

    def shutdown(self) -> None:
        """Release the resources."""
        if self._driver is not None:
            self._driver.end()
            self._driver = None
        if self._hosts is not None:
            self._hosts.release()
            self._hosts = None

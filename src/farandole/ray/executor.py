"""`RayExecutor`, with Horovod's interface."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from farandole.control.launcher.arguments import (
    check_call,
    check_callbacks,
    check_flag,
    check_function,
    read_count,
    read_number,
    read_variables,
)
from farandole.errors import SpecError
from farandole.ray.adapter import Adapter
from farandole.ray.elastic_workers import ElasticParams, ElasticWorkers
from farandole.ray.fixed_workers import FixedWorkers
from farandole.ray.host_actors import check_amount
from farandole.ray.settings import RaySettings, write_identity_file


class RayExecutor:
    """Runs functions on workers that are started by Ray.

    With `min_workers`, the job is elastic: `run` starts it, and its workers may join and leave. Otherwise workers are
    actors, which keep their state from call to call, until `shutdown`.

    Args:
        settings: the result of `create_settings`.
        num_workers: number of workers, wherever there is room.
        num_hosts: number of hosts, each with `num_workers_per_host` workers, instead of `num_workers`.
        num_workers_per_host: number of workers on each of these hosts.
        cpus_per_worker: CPUs of each worker.
        use_gpu: whether each worker needs GPUs. Tensors of GPUs are sent through host memory, unless NCCL can be used.
        gpus_per_worker: GPUs of each worker; the default is 1 with `use_gpu`.
        use_current_placement_group: whether to use the placement group of the caller, if it runs in one.
        min_workers: the minimum number of workers of an elastic job.
        max_workers: the maximum number of workers of an elastic job.
        reset_limit: the maximum number of worlds of an elastic job after the first one.
        cooldown_range: the shortest and the longest time, in seconds, that a failed slot of an elastic job is not used.
        elastic_timeout: seconds that an elastic job waits for `min_workers`.
        override_discovery: whether to find slots in the Ray cluster, rather than ask `settings.discovery`.

    Raises:
        ValueError: an argument is not valid, or the arguments contradict each other.
    """

    @classmethod
    def create_settings(
        cls,
        timeout_s: float = 30,
        ssh_identity_file: str | None = None,
        ssh_str: str | None = None,
        placement_group_timeout_s: float = 100,
        nics: Iterable[str] | None = None,
        **others: Any,
    ) -> RaySettings:
        """Return settings.

        Args:
            timeout_s: seconds that a call to the cluster may take while workers are started.
            ssh_identity_file: path for `ssh_str`.
            ssh_str: a private key, which is written to that path unless the file exists. The key is not used.
            placement_group_timeout_s: seconds to wait for the resources of all workers.
            nics: network interfaces between workers.
            others: other fields of `RaySettings`, such as `verbose`.
        """
        write_identity_file(ssh_identity_file, ssh_str)
        return RaySettings(
            timeout_s=timeout_s,
            ssh_identity_file=ssh_identity_file,
            placement_group_timeout_s=placement_group_timeout_s,
            nics=nics,
            **others,
        )

    def __init__(
        self,
        settings: RaySettings,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int = 1,
        cpus_per_worker: int = 1,
        use_gpu: bool = False,
        gpus_per_worker: int | None = None,
        use_current_placement_group: bool = True,
        min_workers: int | None = None,
        max_workers: int | None = None,
        reset_limit: int | None = None,
        cooldown_range: tuple[float, float] | None = None,
        elastic_timeout: int = 600,
        override_discovery: bool = True,
    ) -> None:
        if not isinstance(settings, RaySettings):
            raise SpecError(f"settings={settings!r:.80} is not RaySettings", "give RayExecutor.create_settings()")
        check_flag("use_gpu", use_gpu)
        check_flag("use_current_placement_group", use_current_placement_group)
        gpus = _gpus_of(use_gpu, gpus_per_worker)
        if max_workers is not None and not min_workers:
            raise ValueError("`max_workers` needs `min_workers`, a number from 1 up.")
        if min_workers is not None and num_workers is not None:
            raise ValueError(
                "Both `min_workers` and `num_workers` provided. Give `min_workers`, and perhaps `max_workers`, for an "
                "elastic job, or `num_workers` for one of fixed size."
            )
        self.settings = settings
        self.adapter: Adapter
        if min_workers is not None:
            params = ElasticParams(
                min_workers=min_workers,
                max_workers=max_workers,
                reset_limit=reset_limit,
                cooldown_range=cooldown_range,
                elastic_timeout=elastic_timeout,
                override_discovery=override_discovery,
                cpus_per_worker=cpus_per_worker,
                use_gpu=use_gpu,
                gpus_per_worker=gpus_per_worker,
            )
            self.adapter = ElasticWorkers(params, settings)
        else:
            for name, count in (("num_workers", num_workers), ("num_hosts", num_hosts)):
                if count is not None:
                    read_count(name, count)
            read_count("num_workers_per_host", num_workers_per_host)
            check_amount("cpus_per_worker", cpus_per_worker)
            self.adapter = FixedWorkers(
                settings,
                num_workers,
                num_hosts,
                num_workers_per_host,
                cpus_per_worker,
                gpus,
                use_current_placement_group,
            )

    def start(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, Any] | None = None,
    ) -> None:
        """Start the workers, and in each an object of a class, which lives until `shutdown`.

        Args:
            executable_cls: the class; None: no object.
            executable_args: positional arguments for it.
            executable_kwargs: keyword arguments for it.
            extra_env_vars: variables for the workers, with values that are converted to text.

        Raises:
            SpecError: an argument is not valid.
            TimeoutError: the resources are not available in time.
        """
        args = () if executable_args is None else executable_args
        kwargs = {} if executable_kwargs is None else executable_kwargs
        check_call(executable_cls or object, args, kwargs, prefix="executable_")
        variables = read_variables("extra_env_vars", extra_env_vars)
        self.adapter.start(executable_cls, args, kwargs, variables)

    def execute(self, fn: Callable[[Any], Any], callbacks: Sequence[Callable[[Any], Any]] | None = None) -> list[Any]:
        """Run a function with the object of each worker (None without a class), and return the values by rank.

        Args:
            fn: the function of the object.
            callbacks: functions that are called with each value that a worker passes to `ray_logger.log`; elastic jobs
                only.
        """
        check_function(fn)
        check_callbacks(() if callbacks is None else callbacks)
        return self.adapter.execute(fn, callbacks)

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callable[[Any], Any]] | None = None,
    ) -> list[Any]:
        """Run a function on all workers, and return the values by rank.

        Args:
            fn: the function.
            args: positional arguments for it.
            kwargs: keyword arguments for it.
            callbacks: functions that are called with each value that a worker passes to `ray_logger.log`; elastic jobs
                only.
        """
        check_call(fn, () if args is None else args, {} if kwargs is None else kwargs)
        check_callbacks(() if callbacks is None else callbacks)
        return self.adapter.run(fn, args, kwargs, callbacks)

    def run_remote(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Run a function on all workers, and return Ray's object references to the values, by rank."""
        check_call(fn, () if args is None else args, {} if kwargs is None else kwargs)
        return self.adapter.run_remote(fn, args, kwargs)

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Run a function with the object of rank 0, and return its value."""
        check_function(fn)
        return self.adapter.execute_single(fn)

    def shutdown(self) -> None:
        """End the workers. The executor can be started again."""
        self.adapter.shutdown()


def _gpus_of(use_gpu: bool, gpus_per_worker: int | None) -> int:
    """Return the GPUs of each worker.

    Raises:
        ValueError: the arguments contradict each other.
    """
    if gpus_per_worker is not None and not use_gpu:
        raise ValueError("`gpus_per_worker` has no effect without `use_gpu=True`: pass both, or omit it.")
    if gpus_per_worker is not None and read_number("gpus_per_worker", gpus_per_worker, "GPUs") < 1:
        raise ValueError(f"`gpus_per_worker` is {gpus_per_worker}, and must be at least 1 with `use_gpu=True`.")
    return (gpus_per_worker or 1) if use_gpu else 0

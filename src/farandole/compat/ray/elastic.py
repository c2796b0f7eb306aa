"""`horovod.ray.elastic`: the older executor of elastic jobs."""

from __future__ import annotations

import os
import random
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from farandole.compat.ray import elastic_v2
from farandole.ray.elastic_workers import ElasticParams, ElasticWorkers
from farandole.ray.settings import RaySettings

__all__ = ["ElasticRayExecutor", "RayHostDiscovery", "TestDiscovery"]


class RayHostDiscovery(elastic_v2.RayHostDiscovery):
    """Finds the slots of a Ray cluster.

    Args:
        use_gpu: whether workers need GPUs.
        cpus_per_slot: CPUs of each worker.
        gpus_per_slot: GPUs of each worker.
    """

    def __init__(self, use_gpu: bool = False, cpus_per_slot: int = 1, gpus_per_slot: int = 1) -> None:
        super().__init__(use_gpu, cpus_per_slot, gpus_per_slot)


class TestDiscovery(RayHostDiscovery):
    """Finds a random part of the slots of a Ray cluster, between two numbers of hosts.

    Args:
        min_hosts: the minimum number of hosts.
        max_hosts: the maximum number of hosts.
        change_frequency_s: seconds between two changes.
        use_gpu: whether workers need GPUs.
        cpus_per_slot: CPUs of each worker.
        gpus_per_slot: GPUs of each worker.
        verbose: accepted.
    """

    __test__ = False

    def __init__(
        self,
        min_hosts: int,
        max_hosts: int,
        change_frequency_s: float,
        use_gpu: bool = False,
        cpus_per_slot: int = 1,
        gpus_per_slot: int = 1,
        verbose: bool = True,
    ) -> None:
        super().__init__(use_gpu, cpus_per_slot, gpus_per_slot)
        self._least, self._most, self._seconds = min_hosts, max_hosts, change_frequency_s
        self._changed_at = 0.0
        self._chosen: set[str] = set()

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """Return the number of workers that each chosen node has room for, by its address."""
        found = super().find_available_hosts_and_slots()
        if time.monotonic() - self._changed_at > self._seconds or not self._chosen & found.keys():
            self._changed_at = time.monotonic()
            number = min(len(found), random.randint(self._least, self._most))
            self._chosen = set(random.sample(sorted(found), number))
        return {host: slots for host, slots in found.items() if host in self._chosen}


class ElasticRayExecutor:
    """Runs elastic jobs. New scripts should use `RayExecutor(min_workers=...)`.

    Args:
        settings: the result of `create_settings`.
        use_gpu: whether each worker needs GPUs.
        cpus_per_slot: CPUs of each worker.
        gpus_per_slot: GPUs of each worker; 1 with `use_gpu`.
        env_vars: variables for the workers.
        override_discovery: whether to find slots in the Ray cluster, rather than ask `settings.discovery`.

    Raises:
        ValueError: the arguments contradict each other.
    """

    @staticmethod
    def create_settings(
        min_num_proc: int = 1,
        max_num_proc: int | None = None,
        reset_limit: int | None = None,
        elastic_timeout: float = 600,
        timeout_s: float = 30,
        ssh_identity_file: str | None = "~/ray_bootstrap_key.pem",
        nics: Iterable[str] | None = None,
        min_np: int | None = None,
        max_np: int | None = None,
        **kwargs: Any,
    ) -> RaySettings:
        """Return settings; `min_np` and `max_np` are older names of `min_num_proc` and `max_num_proc`."""
        for old, name in ((min_np, "min_np"), (max_np, "max_np")):
            if old is not None:
                new = name.replace("np", "num_proc")
                warnings.warn(f"{name} has another name now: {new}", DeprecationWarning, stacklevel=2)
        return RaySettings(
            timeout_s=timeout_s,
            ssh_identity_file=ssh_identity_file and os.path.expanduser(ssh_identity_file),
            nics=nics,
            elastic=True,
            min_num_proc=min_num_proc if min_np is None else min_np,
            max_num_proc=max_num_proc if max_np is None else max_np,
            reset_limit=reset_limit,
            elastic_timeout=elastic_timeout,
            **kwargs,
        )

    def __init__(
        self,
        settings: RaySettings,
        use_gpu: bool = False,
        cpus_per_slot: int = 1,
        gpus_per_slot: int | None = None,
        env_vars: Mapping[str, Any] | None = None,
        override_discovery: bool = True,
    ) -> None:
        if gpus_per_slot is not None and not use_gpu:
            raise ValueError("gpus_per_slot has no effect without use_gpu=True: pass both, or omit it.")
        if use_gpu and gpus_per_slot is not None and gpus_per_slot < 1:
            raise ValueError(f"gpus_per_slot is {gpus_per_slot}, and must be at least 1 with use_gpu=True.")
        self.settings = settings
        self._env_vars = env_vars
        self._workers = ElasticWorkers(
            ElasticParams(
                min_workers=settings.min_num_proc or 1,
                max_workers=settings.max_num_proc,
                reset_limit=settings.reset_limit,
                cooldown_range=settings.cooldown_range,
                elastic_timeout=settings.elastic_timeout,
                override_discovery=override_discovery,
                cpus_per_worker=cpus_per_slot,
                use_gpu=use_gpu,
                gpus_per_worker=gpus_per_slot,
            ),
            settings,
        )

    def start(self) -> None:
        """Wait for the resources of the minimum number of workers."""
        self._workers.start(extra_env_vars=self._env_vars)

    def run(self, worker_fn: Callable[[], Any], callbacks: Sequence[Callable[[Any], Any]] | None = None) -> list[Any]:
        """Run a function in each worker, and return the values of those that have finished, by rank.

        Args:
            worker_fn: the function, without arguments.
            callbacks: functions that are called with each value that a worker passes to `ray_logger.log`.
        """
        try:
            return self._workers.run(worker_fn, callbacks=callbacks)
        finally:
            self._workers.shutdown()

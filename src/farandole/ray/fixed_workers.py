"""A fixed number of workers, each a Ray actor that lives until `shutdown`."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from farandole.control.launcher.plan.environment import place_variables
from farandole.errors import SpecError
from farandole.ray.placement import (
    Placement,
    count_workers,
    devices_by_node,
    find_node_places,
    plan_placement,
)
from farandole.ray.settings import RaySettings
from farandole.ray.use_ray import in_group, is_ready, use_ray
from farandole.ray.worker import BaseHorovodWorker

_SECRET_BYTES = 32
# The least time, in seconds, that actors get to start once their resources are there: Ray may have to install packages.
_START_SECONDS = 300.0
# Seconds that ranks get to end a call that has failed on another rank.
_FAILED_CALL_SECONDS = 30.0


class FixedWorkers:
    """Actors, and their world; an `Adapter`.

    Args:
        settings: the settings of the executor.
        num_workers: number of workers, wherever there is room.
        num_hosts: number of hosts, each with `num_workers_per_host` workers, instead of `num_workers`.
        num_workers_per_host: number of workers on each of these hosts.
        cpus_per_worker: CPUs of each worker.
        gpus_per_worker: GPUs of each worker.
        use_current_placement_group: whether to use the placement group of the caller, if it runs in one.
    """

    def __init__(
        self,
        settings: RaySettings,
        num_workers: int | None,
        num_hosts: int | None,
        num_workers_per_host: int,
        cpus_per_worker: float,
        gpus_per_worker: float,
        use_current_placement_group: bool,
    ) -> None:
        self._settings = settings
        self._num_workers, self._num_hosts = num_workers, num_hosts
        self._per_host = num_workers_per_host
        self._cpus, self._gpus = cpus_per_worker, gpus_per_worker
        self._inherits = use_current_placement_group
        self._group: Any = None
        """The placement group that `shutdown` removes."""
        self.workers: list[Any] = []
        """The actors, by rank."""
        self._calls: list[Any] = []
        """References to the values of the last call of all workers, by rank; empty once it has succeeded."""

    def start(
        self,
        executable_cls: type | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, Any] | None = None,
    ) -> None:
        """Start the actors, and assign each its place in the world.

        Raises:
            SpecError: the placement group of this program has too little room.
            TimeoutError: the resources are not available in time.
        """
        assert self._num_workers is None or self._num_hosts is None, "give either num_workers or num_hosts, not both"
        assert self._num_workers is not None or self._num_hosts is not None, "give num_workers or num_hosts"
        if self.workers:
            self.shutdown()
        try:
            self.workers = self._make_actors(*self._place())
            self._connect(extra_env_vars or {})
            started = [
                worker.start_executable.remote(executable_cls, executable_args, executable_kwargs)
                for worker in self.workers
            ]
            # The user's code may take any time, as in `run`.
            use_ray().get(started)
        except BaseException:
            self.shutdown()
            raise

    def _place(self) -> tuple[Any, Placement, bool]:
        """Return a placement group that is ready, its plan, and whether a worker may use any of its bundles."""
        from ray.util import get_current_placement_group, placement_group

        plan = plan_placement(self._num_workers, self._num_hosts, self._per_host, self._cpus, self._gpus)
        inherited = get_current_placement_group() if self._inherits else None
        if inherited is not None:
            self._check_room(inherited, sum(plan.workers))
            return inherited, plan, True
        seconds = self._settings.placement_group_timeout_s
        self._group = placement_group([dict(bundle) for bundle in plan.bundles], strategy=plan.strategy)
        needed = (
            f"the resources of {sum(plan.workers)} workers, {plan.strategy} of {[dict(each) for each in plan.bundles]}"
        )
        if not is_ready(self._group, seconds, needed):
            ray = use_ray()
            raise TimeoutError(
                f"Ray did not have the resources for {sum(plan.workers)} workers within {seconds:g} s: "
                f"{plan.strategy} of {[dict(bundle) for bundle in plan.bundles]}. The cluster has "
                f"{ray.cluster_resources()}, of which {ray.available_resources()} are free. Ask for less, add nodes, "
                "or wait longer with placement_group_timeout_s."
            )
        return self._group, plan, False

    def _check_room(self, inherited: Any, workers: int) -> None:
        """Refuse a placement group in which the workers have no room: Ray would wait for it forever.

        Raises:
            SpecError: it has too little room.
        """
        room = count_workers(inherited.bundle_specs, self._cpus, self._gpus)
        if room < workers:
            raise SpecError(
                f"the placement group of this program has room for {room} of {workers} workers, which need "
                f"{self._cpus:g} CPUs and {self._gpus:g} GPUs each: it has {inherited.bundle_specs}",
                "add a bundle for each worker to that group, or start the executor outside of it with "
                "use_current_placement_group=False",
            )

    def _make_actors(self, group: Any, plan: Placement, anywhere: bool) -> list[Any]:
        actor = use_ray().remote(num_cpus=self._cpus, num_gpus=self._gpus)(BaseHorovodWorker)
        bundles = [bundle for bundle, workers in enumerate(plan.workers) for _ in range(workers)]
        return [
            actor.options(scheduling_strategy=in_group(group, -1 if anywhere else bundle)).remote(rank, len(bundles))
            for rank, bundle in enumerate(bundles)
        ]

    def _connect(self, extra: Mapping[str, Any]) -> None:
        nodes = self._answers("node_id")
        self._answers("listen_on", self._settings.nics)
        places, secret = find_node_places(nodes), secrets.token_bytes(_SECRET_BYTES)
        roster, master = self._wait_for([self.workers[0].serve_roster.remote(places, secret)])[0]
        devices, common = self._devices(nodes), common_environment(roster, master, secret, self._settings)
        given = [
            {**place_variables(rank, len(places), place), **common, **devices[rank], **extra}
            for rank, place in enumerate(places)
        ]
        self._wait_for([worker.update_env_vars.remote(each) for worker, each in zip(self.workers, given, strict=True)])

    def _devices(self, nodes: Sequence[str]) -> list[dict[str, str]]:
        if not self._gpus:
            return [{} for _ in nodes]
        own = [list(map(str, ids)) for ids in self._answers("get_gpu_ids")]
        return [{"CUDA_VISIBLE_DEVICES": each} for each in devices_by_node(nodes, own)]

    def _answers(self, method: str, *args: Any) -> list[Any]:
        """Call a method of all actors, and return the values by rank.

        Raises:
            TimeoutError: an actor does not answer.
        """
        return self._wait_for([getattr(worker, method).remote(*args) for worker in self.workers])

    def _wait_for(self, references: Sequence[Any]) -> list[Any]:
        """Return the values of calls that are fast in an actor that has started.

        Raises:
            TimeoutError: the values do not arrive in time.
        """
        seconds = max(_START_SECONDS, self._settings.timeout_s)
        try:
            return list(use_ray().get(references, timeout=seconds))
        except TimeoutError as error:
            found = (
                "perhaps because something else uses the placement group of this program"
                if self._group is None
                else "although Ray has their resources"
            )
            raise TimeoutError(
                f"the actors of {len(self.workers)} workers have not answered within {seconds:g} s, {found}. "
                "See Ray's logs of these actors (`ray list actors`), or wait longer with timeout_s."
            ) from error

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callable[[Any], Any]] | None = None,
    ) -> list[Any]:
        """Run `fn(*args, **kwargs)` on all workers, and return the values by rank."""
        arguments, keywords = tuple(args or ()), dict(kwargs or {})
        return self.execute(lambda _: fn(*arguments, **keywords))

    def run_remote(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Run `fn(*args, **kwargs)` on all workers, and return references to the values, by rank."""
        arguments, keywords = tuple(args or ()), dict(kwargs or {})
        return self._call(lambda _: fn(*arguments, **keywords))

    def execute(self, fn: Callable[[Any], Any], callbacks: Sequence[Callable[[Any], Any]] | None = None) -> list[Any]:
        """Run `fn(object)` on all workers, and return the values by rank."""
        values = list(use_ray().get(self._call(fn)))
        self._calls = []
        return values

    def _call(self, fn: Callable[[Any], Any]) -> list[Any]:
        self._calls = [self._begin(worker, fn) for worker in self._started()]
        return list(self._calls)

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Run `fn(object)` on rank 0, and return the value."""
        return use_ray().get(self._begin(self._started()[0], fn))

    def _begin(self, worker: Any, fn: Callable[[Any], Any]) -> Any:
        return worker.execute_after.remote(self._calls, _FAILED_CALL_SECONDS, fn)

    def _started(self) -> list[Any]:
        if not self.workers:
            raise RuntimeError("this executor has no workers: call start() first")
        return self.workers

    def shutdown(self) -> None:
        """End the actors, and release their resources."""
        ray = use_ray()
        for worker in self.workers:
            ray.kill(worker)
        self.workers, self._calls = [], []
        if self._group is not None:
            ray.util.remove_placement_group(self._group)
            self._group = None


def common_environment(roster: str, master: str, secret: bytes, settings: RaySettings) -> dict[str, str]:
    """Return the variables that all workers of a job have.

    Args:
        roster: host:port of the roster.
        master: host:port for scripts that also use torch.distributed.
        secret: the secret of the job.
        settings: the settings of the executor.
    """
    address, _, port = roster.rpartition(":")
    master_address, _, master_port = master.rpartition(":")
    variables = {
        "FARANDOLE_JOB": secrets.token_hex(8),
        "FARANDOLE_ROSTER": roster,
        "FARANDOLE_SECRET": secret.hex(),
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "MASTER_ADDR": master_address,
        "MASTER_PORT": master_port,
    }
    if settings.nics:
        variables["HOROVOD_GLOO_IFACE"] = next(iter(settings.nics))
    if settings.start_timeout is not None:
        variables["FARANDOLE_START_TIMEOUT"] = f"{settings.start_timeout:g}"
    return variables

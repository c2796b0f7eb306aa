"""The hosts of an elastic job on a Ray cluster: actors that have the resources, and dial the launcher in the driver.

Each actor has room for one worker. The minimum number of workers is one placement group, all or nothing; each further
worker has its own placement group. A group that Ray cannot place yet is the demand that an autoscaler sees. If a node
is lost, Ray places its bundles elsewhere and starts the actors again, which dial under new names. If Ray says before
that a node is about to go (it *drains* the node), the worker there leaves at the end of a step.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from farandole.control.agent.dialer_process import DialerProcess
from farandole.control.launcher.arguments import read_count, read_number
from farandole.control.launcher.job.elastic import DIAL, Elastic
from farandole.errors import SpecError
from farandole.ray.placement import count_slots
from farandole.ray.use_ray import draining_nodes, in_group, is_ready, use_ray

# Seconds for which an actor tries to reach the launcher, before it tries again under another name.
_PATIENCE_SECONDS = 60.0
_REST_SECONDS = 0.5
# Seconds between two queries for hosts.
_ASK_SECONDS = 1.0
# The amount of a node's own resource that an actor requests, so that Ray places it on that node.
_NODE_SHARE = 0.001


@dataclass(frozen=True)
class Demand:
    """The resources that a job requests."""

    min_workers: int
    max_workers: int | None
    """The maximum number of workers; None: as many as there is room for."""
    cpus: float = 1
    """CPUs of each worker."""
    gpus: float = 0
    """GPUs of each worker."""
    discovery: Any = None
    """An object with `find_available_hosts_and_slots()`, whose hosts are used instead of those of the whole cluster."""

    @property
    def each(self) -> dict[str, float]:
        """The resources of one worker."""
        found = {name: amount for name, amount in (("CPU", self.cpus), ("GPU", self.gpus)) if amount}
        return found or {"CPU": _NODE_SHARE}

    def limits(
        self, timeout: float, reset_limit: int | None = None, cooldown: tuple[float, float] | None = None
    ) -> Elastic:
        """Return the limits of a job on these resources.

        Args:
            timeout: seconds to wait for the minimum number of workers.
            reset_limit: the maximum number of worlds after the first one; None: no limit.
            cooldown: the shortest and the longest time, in seconds, that a failed slot is not used.

        Raises:
            SpecError: a value is not valid.
        """
        least = read_count("min_workers", self.min_workers)
        most = None if self.max_workers is None else read_count("max_workers", self.max_workers)
        if most is not None and most < least:
            raise SpecError(f"max_workers={most} is below min_workers={least}", "give the same number, or more")
        check_amount("cpus_per_worker", self.cpus)
        check_amount("gpus_per_worker", self.gpus)
        return Elastic(
            least,
            most,
            discovery=DIAL,
            timeout=_read_timeout(timeout),
            reset_limit=None if reset_limit is None else read_count("reset_limit", reset_limit, "worlds", least=0),
            cooldown=None if cooldown is None else _read_cooldown(cooldown),
            fills_at_once=True,
        )


def check_amount(name: str, given: Any) -> None:
    """Refuse what is not an amount of CPUs or GPUs.

    Args:
        name: the name of the argument.
        given: its value.

    Raises:
        SpecError: it is not a number, is negative or is infinite.
    """
    what = f"{name[:3].upper()}s"
    if not 0 <= read_number(name, given, what) < math.inf:
        raise SpecError(f"{name}={given!r} is not a number of {what}", "give 0 or more")


def _read_timeout(given: Any) -> float:
    seconds = read_number("elastic_timeout", given, "seconds")
    if seconds <= 0:
        raise SpecError(f"elastic_timeout={given!r} leaves no time to wait for workers", "give seconds above 0")
    return seconds


def _read_cooldown(given: Any) -> tuple[float, float]:
    hint = "give the shortest and the longest time, in seconds above 0, for example cooldown_range=(10, 600)"
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise SpecError(f"cooldown_range={given!r} is not a pair of times", hint)
    shortest, longest = (read_number("cooldown_range", each, "seconds") for each in given)
    if not 0 < shortest <= longest < math.inf:
        raise SpecError(f"cooldown_range={given!r} is not a range", hint)
    return shortest, longest


class HostActor:
    """Dials the launcher; when the dialer has ended, dials again under another name.

    Args:
        launcher: host:port of the launcher's reception.
        secret: the secret of the job.
        environment: variables for the workers.
        directory: the directory in which workers run; "": that of this process.
    """

    def __init__(self, launcher: str, secret: bytes, environment: Mapping[str, str], directory: str = "") -> None:
        ray = use_ray()
        address, devices = ray.util.get_node_ip_address(), [str(each) for each in ray.get_gpu_ids()]
        # Workers that connect to Ray find the cluster that they are on.
        variables = {"RAY_ADDRESS": ray.get_runtime_context().gcs_address, **environment}
        self._leaves = threading.Event()
        self._lock = threading.Lock()
        self._dialer: DialerProcess | None = None

        def dial() -> None:
            while not self._leaves.is_set():
                name = f"{address}-{secrets.token_hex(3)}"
                dialer = DialerProcess(
                    launcher,
                    secret,
                    name,
                    devices=devices,
                    patience=_PATIENCE_SECONDS,
                    environment=variables,
                    directory=directory or None,
                )
                with self._lock:
                    self._dialer = dialer
                    if self._leaves.is_set():
                        dialer.leave()
                dialer.wait()
                time.sleep(_REST_SECONDS)

        threading.Thread(target=dial, name="farandole-dialer", daemon=True).start()

    def leave_if_on(self, nodes: Collection[str]) -> None:
        """Make the worker leave the job at the end of a step if this actor is on one of these nodes, and stop dialing.

        Ray starts this actor again elsewhere when the node has gone.
        """
        if self.node() in nodes:
            self._leaves.set()
            with self._lock:
                if self._dialer is not None:
                    self._dialer.leave()

    def node(self) -> str:
        """Return the id of this actor's node."""
        return str(use_ray().get_runtime_context().get_node_id())


class HostActors:
    """All hosts of one job.

    Args:
        demand: the resources that the job requests.
        directory: the directory in which workers run; "": that of Ray's processes.
    """

    def __init__(self, demand: Demand, directory: str = "") -> None:
        self._demand = demand
        self._directory = directory
        self._least: Any = None
        """The placement group of the minimum number of workers."""
        self._groups: list[Any] = []
        self._actors: list[Any] = []
        self._last: Any = None
        """A Ray object reference that is ready when the last actor has started."""
        self._by_host: dict[str, list[Any]] = {}
        """Actors on hosts of the user's discovery."""
        self._asked_at = 0.0
        self._draining: frozenset[str] = frozenset()
        """The nodes that are about to go."""
        self._arguments: tuple[str, bytes, Mapping[str, str], str] = "", b"", {}, ""

    def reserve(self, seconds: float) -> None:
        """Wait for the resources of the minimum number of workers.

        Raises:
            TimeoutError: the resources are not available in time.
        """
        deadline = time.monotonic() + seconds
        if self._demand.discovery is not None:
            while (slots := sum(self._found().values())) < self._demand.min_workers:
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"the discovery has found {slots} of {self._demand.min_workers} slots within {seconds:g} s. "
                        "Wait longer with elastic_timeout, or ask for fewer with min_workers."
                    )
                time.sleep(_ASK_SECONDS)
            return
        from ray.util import placement_group

        self._least = placement_group([self._demand.each] * self._demand.min_workers, strategy="PACK")
        needed = f"the resources of {self._demand.min_workers} workers, of which each needs {self._demand.each}"
        if not is_ready(self._least, seconds, needed):
            ray = use_ray()
            raise TimeoutError(
                f"Ray did not have the resources for {self._demand.min_workers} workers within {seconds:g} s: each "
                f"needs {self._demand.each}, and of {ray.cluster_resources()} {ray.available_resources()} are free. "
                "Ask for less, add nodes, or wait longer with elastic_timeout."
            )

    def begin(self, launcher: str, secret: bytes, environment: Mapping[str, str]) -> None:
        """Start the actors, which dial the launcher."""
        self._arguments = launcher, secret, environment, self._directory
        if self._demand.discovery is None:
            for bundle in range(self._demand.min_workers):
                self._add(in_group(self._least, bundle))
            for _ in range(self._most_now() - self._demand.min_workers):
                self._add_single()
        self.tend()

    def tend(self) -> None:
        """Ask for further hosts, if the job may have more, and leave nodes that are about to go. Call this often."""
        if time.monotonic() - self._asked_at < _ASK_SECONDS:
            return
        self._asked_at = time.monotonic()
        self._leave_draining_nodes()
        if self._demand.discovery is not None:
            self._follow(self._found())
        elif self._demand.max_workers is None and use_ray().wait([self._last], timeout=0)[0]:
            self._add_single()

    def end(self) -> None:
        """End all actors, and release their resources."""
        ray = use_ray()
        for actor in self._all():
            ray.kill(actor)
        self._actors, self._by_host = [], {}
        for group in self._groups:
            ray.util.remove_placement_group(group)
        self._groups = []

    def release(self) -> None:
        """Also release the resources of the minimum number of workers."""
        self.end()
        if self._least is not None:
            use_ray().util.remove_placement_group(self._least)
            self._least = None

    def _all(self) -> list[Any]:
        return [*self._actors, *(each for actors in self._by_host.values() for each in actors)]

    def _leave_draining_nodes(self) -> None:
        draining = draining_nodes()
        if draining - self._draining:
            for actor in self._all():
                actor.leave_if_on.remote(draining)
        self._draining = draining

    def _most_now(self) -> int:
        """Return the number of workers to request at present."""
        if self._demand.max_workers is not None:
            return self._demand.max_workers
        here = count_slots(use_ray().nodes(), self._demand.cpus, self._demand.gpus, self._demand.gpus > 0)
        return max(self._demand.min_workers, sum(here.values()))

    def _add_single(self) -> None:
        from ray.util import placement_group

        self._groups.append(placement_group([self._demand.each]))
        self._add(in_group(self._groups[-1], 0))

    def _add(self, strategy: Any) -> None:
        self._actors.append(self._actor(scheduling_strategy=strategy))
        self._last = self._actors[-1].node.remote()

    def _actor(self, **options: Any) -> Any:
        demand = self._demand
        made = use_ray().remote(num_cpus=demand.cpus, num_gpus=demand.gpus, max_restarts=-1)(HostActor)
        return made.options(**options).remote(*self._arguments)

    # --- hosts that the user's discovery finds ------------------------------------------------------------------------

    def _found(self) -> Mapping[str, int]:
        found: Mapping[str, int] = self._demand.discovery.find_available_hosts_and_slots()
        return found

    def _follow(self, found: Mapping[str, int]) -> None:
        wanted = Counter({host: slots for host, slots in found.items() if slots > 0})
        for host, actors in self._by_host.items():
            while len(actors) > wanted[host]:
                use_ray().kill(actors.pop())
        for host, slots in wanted.items():
            actors = self._by_host.setdefault(host, [])
            while len(actors) < slots:
                actors.append(self._actor(resources={f"node:{host}": _NODE_SHARE}))

"""farandole in the workers of Ray Train.

Ray Train starts the workers, as actors, and detects their failures; its controller serves the roster. In an elastic
job, each worker is a replica group in Ray's terms: Ray replaces a worker that has failed, while the others continue
training, and the replacement joins them as a newcomer.

Ray's report does not prove that a worker has ended: processes of a lost node may continue for seconds. So such a worker
is excluded, which is safe in either case.
"""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from farandole.control.launcher.arguments import check_flag
from farandole.control.launcher.plan.environment import place_of, place_variables
from farandole.control.roster.elastic import ElasticState, Limits
from farandole.control.roster.events import Evicted, Expected
from farandole.control.roster.fixed import FixedState
from farandole.errors import SpecError
from farandole.ray.fixed_workers import common_environment
from farandole.ray.placement import devices_by_node, find_node_places
from farandole.ray.roster_thread import RosterThread
from farandole.ray.settings import RaySettings
from farandole.ray.use_ray import use_ray
from farandole.ray.worker import free_address, listen_addresses

try:
    from ray.train.backend import Backend, BackendConfig
except ImportError as error:
    raise SpecError("Ray Train is not installed", "pip install 'farandole[ray-train]'") from error

_SECRET_BYTES = 32
# Seconds that a worker of Ray Train, which has started, may take to set its environment.
_ANSWER_SECONDS = 300.0


class FarandoleConfig(BackendConfig):  # type: ignore[misc]
    """Makes the workers of Ray Train one world of farandole.

    Args:
        elastic: whether the training function has an elastic loop. Then a worker that fails is replaced while the
            others continue training. This needs `FailureConfig(max_failures=...)`, in which each replacement counts.
        nics: network interfaces between workers; None: those that can reach each other.
        start_timeout: seconds that workers wait in `init()` for the others, from the most recent call; None: the
            default.

    Example:
        >>> trainer = DataParallelTrainer(  # doctest: +SKIP
        ...     train, backend_config=FarandoleConfig(), scaling_config=ScalingConfig(num_workers=4)
        ... )
        >>> trainer.fit()  # doctest: +SKIP
    """

    backend = "farandole"
    """Read by Ray's `TorchTrainer`, which would choose a backend of torch.distributed otherwise."""

    def __init__(
        self, elastic: bool = False, *, nics: Iterable[str] | None = None, start_timeout: float | None = None
    ) -> None:
        check_flag("elastic", elastic)
        self.elastic = elastic
        self.settings = RaySettings(nics=nics, start_timeout=start_timeout)

    @property
    def backend_cls(self) -> type[Any]:
        """The class that Ray Train's controller instantiates."""
        return ElasticBackend if self.elastic else FixedBackend

    def to_dict(self) -> dict[str, Any]:
        """Return the values for Ray's dashboard."""
        return {"elastic": self.elastic}


class FixedBackend(Backend):  # type: ignore[misc]
    """Makes all workers one world, which ends with the first failure of a worker. Ray may then restart all."""

    _roster: RosterThread | None = None

    def on_start(self, worker_group: Any, backend_config: FarandoleConfig) -> None:
        """Serve a roster for all workers, and assign each its place.

        Raises:
            TimeoutError: a worker does not answer.
        """
        self._close()
        workers = _by_rank(worker_group)
        nodes, secret = [worker.metadata.node_id for worker in workers], secrets.token_bytes(_SECRET_BYTES)
        places = find_node_places(nodes)
        self._roster = RosterThread(FixedState(places), secret, use_ray().util.get_node_ip_address())
        common = _common(self._roster, workers, secret, backend_config.settings)
        own = [
            {**place_variables(rank, len(places), places[rank]), **common, **each}
            for rank, each in enumerate(_devices(workers))
        ]
        _set_environment(workers, own, backend_config.settings)

    def on_shutdown(self, worker_group: Any, backend_config: FarandoleConfig) -> None:
        """Stop serving."""
        self._close()

    def _close(self) -> None:
        if self._roster is not None:
            self._roster.close()
            self._roster = None


class ElasticBackend(FixedBackend):
    """Makes the running workers a world, and replacements newcomers to it."""

    has_replica_groups = True

    def on_start(self, worker_group: Any, backend_config: FarandoleConfig) -> None:
        """Serve a roster for all workers; let a replacement join them.

        Raises:
            SpecError: Ray cannot replace single workers.
            TimeoutError: a worker does not answer.
        """
        if not _is_whole(worker_group):
            self._add(_by_rank(worker_group), backend_config.settings)
            return
        _check_replaces(worker_group)
        self._close()
        self._workers: dict[int, Any] = {}
        """The workers, by rank in Ray Train, which a replacement inherits."""
        self._numbers: dict[int, int] = {}
        """The job's number of each worker, which is never reused."""
        self._next = itertools.count()
        workers, secret = _by_rank(worker_group), secrets.token_bytes(_SECRET_BYTES)
        state = ElasticState(Limits(1, len(workers)))
        self._roster = RosterThread(state, secret, use_ray().util.get_node_ip_address(), evict=self._kill)
        self._common = _common(self._roster, workers, secret, backend_config.settings)
        self._add(workers, backend_config.settings)

    def on_shutdown(self, worker_group: Any, backend_config: FarandoleConfig) -> None:
        """Continue without workers that Ray reports as lost; stop serving if these are all workers."""
        if _is_whole(worker_group):
            self._close()
            return
        for worker in _by_rank(worker_group):
            number = self._numbers.pop(_rank(worker), None)
            if number is not None and self._roster is not None:
                self._roster.tell(Evicted(number, "Ray Train has taken it to be lost, or it has failed"))

    def _add(self, workers: Sequence[Any], settings: RaySettings) -> None:
        assert self._roster is not None
        self._workers |= {_rank(worker): worker for worker in workers}
        devices = dict(zip(self._workers, _devices(list(self._workers.values())), strict=True))
        environments = []
        for worker in workers:
            rank = _rank(worker)
            number = self._numbers[rank] = next(self._next)
            node = worker.metadata.node_id
            slot = sum(each < rank and other.metadata.node_id == node for each, other in self._workers.items())
            environments.append({**place_of(number, slot, len(self._workers)), **self._common, **devices[rank]})
            self._roster.tell(Expected(number, worker.metadata.hostname))
        _set_environment(workers, environments, settings)

    def _kill(self, number: int) -> None:
        """Kill the actor of a worker, which Ray then replaces."""
        for rank, each in list(self._numbers.items()):
            if each == number:
                use_ray().kill(self._workers[rank].actor)


def _is_whole(group: Any) -> bool:
    """Return whether a group of Ray Train has all workers, rather than a single replacement."""
    return hasattr(group, "get_worker_group_context")


def _check_replaces(group: Any) -> None:
    if getattr(group, "get_replica_groups", lambda: None)() is None:
        raise SpecError(
            f"Ray {use_ray().__version__} cannot replace single workers of Ray Train",
            "use Ray 2.60 or newer, or FarandoleConfig(elastic=False)",
        )


def _rank(worker: Any) -> int:
    return int(worker.distributed_context.world_rank)


def _by_rank(group: Any) -> list[Any]:
    return sorted(group.get_workers(), key=_rank)


def _devices(workers: Sequence[Any]) -> list[dict[str, str]]:
    """Return the variables for the GPUs of each worker: all of the job on its node."""
    given = [list(map(str, worker.metadata.gpu_ids)) for worker in workers]
    if not any(given):
        return [{} for _ in workers]
    together = devices_by_node([worker.metadata.node_id for worker in workers], given)
    return [{"CUDA_VISIBLE_DEVICES": each} for each in together]


def _common(roster: RosterThread, workers: Sequence[Any], secret: bytes, settings: RaySettings) -> dict[str, str]:
    master = use_ray().get(workers[0].execute_async(free_address), timeout=_ANSWER_SECONDS)
    return common_environment(roster.address, master, secret, settings)


def _set_environment(workers: Sequence[Any], environments: Sequence[Mapping[str, str]], settings: RaySettings) -> None:
    """Set variables in each worker."""
    nics = settings.nics

    def update(variables: Mapping[str, str]) -> None:
        os.environ.update(variables, FARANDOLE_LISTEN=listen_addresses(nics))

    calls = [worker.execute_async(update, each) for worker, each in zip(workers, environments, strict=True)]
    use_ray().get(calls, timeout=_ANSWER_SECONDS)

"""The actor of a worker in a job of fixed size."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from farandole.base.wire import interfaces
from farandole.control.roster.events import Place
from farandole.control.roster.fixed import FixedState
from farandole.ray import reports
from farandole.ray.roster_thread import RosterThread
from farandole.ray.use_ray import use_ray


class BaseHorovodWorker:
    """One worker. Its actor has this class, or a user's subclass.

    Attributes:
        executable: the object of the user's class; None: there is none.

    Args:
        world_rank: the rank of this worker.
        world_size: number of workers.
    """

    executable: Any = None

    def __init__(self, world_rank: int = 0, world_size: int = 1) -> None:
        self._roster: RosterThread | None = None
        os.environ["HOROVOD_HOSTNAME"] = self.node_id()
        os.environ["HOROVOD_RANK"] = str(world_rank)
        os.environ["HOROVOD_SIZE"] = str(world_size)

    def node_id(self) -> str:
        """Return the id of the node that this actor is on."""
        return str(use_ray().get_runtime_context().get_node_id())

    def hostname(self) -> str:
        """Return the address of the node that this actor is on."""
        return str(use_ray().util.get_node_ip_address())

    def get_gpu_ids(self) -> list[Any]:
        """Return the GPUs that Ray has given to this actor."""
        return list(use_ray().get_gpu_ids())

    def update_env_vars(self, env_vars: Mapping[str, Any]) -> None:
        """Set environment variables, with values converted to text."""
        os.environ.update({name: str(value) for name, value in env_vars.items()})

    def env_vars(self) -> dict[str, str]:
        """Return the environment."""
        return dict(os.environ)

    def set_queue(self, queue: Any) -> None:
        """Make `ray_logger.log` in this process put values into a queue."""
        reports.use_queue(queue)

    def start_executable(
        self,
        executable_cls: Callable[..., Any] | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Create the object that is passed to later calls."""
        if executable_cls is not None:
            self.executable = executable_cls(*(executable_args or ()), **(executable_kwargs or {}))

    def execute(self, func: Callable[[Any], Any]) -> Any:
        """Return `func(object)`."""
        return func(self.executable)

    def listen_on(self, nics: Iterable[str] | None) -> None:
        """Make this worker reachable for others at all its addresses, or at the addresses of some interfaces."""
        os.environ["FARANDOLE_LISTEN"] = listen_addresses(nics)

    def serve_roster(self, places: Sequence[Place], secret: bytes) -> tuple[str, str]:
        """Serve the roster of the job in this actor; return its address, and a free one for other use."""
        self._roster = RosterThread(FixedState(tuple(places)), secret, self.hostname())
        return self._roster.address, free_address()


def listen_addresses(nics: Iterable[str] | None) -> str:
    """Return the addresses of this node at which other workers reach a worker here, separated by commas.

    Args:
        nics: the network interfaces; None: all.
    """
    found = [each.address for each in interfaces.addresses(tuple(nics or ()))]
    return ",".join(found) or str(use_ray().util.get_node_ip_address())


def free_address() -> str:
    """Return host:port of this node, with a port that is currently free."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return f"{use_ray().util.get_node_ip_address()}:{probe.getsockname()[1]}"

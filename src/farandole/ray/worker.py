"""The actor of a worker in a job of fixed size."""

from __future__ import annotations

import os
import socket
import traceback
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
        self._rank = world_rank
        self._failure = ""
        """The error of the last call; "" if it has not failed."""
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
        self._failure = ""
        try:
            return func(self.executable)
        except Exception as error:
            self._failure = traceback.format_exception_only(error)[-1].strip()
            raise

    def execute_after(self, last_call: Sequence[Any], seconds: float, func: Callable[[Any], Any]) -> Any:
        """Return `func(object)`, after the last call of all workers.

        Args:
            last_call: references to the values of that call, by rank.
            seconds: the time that the other workers get to end that call if it has failed here.
            func: the function of the object.

        Raises:
            RuntimeError: that call has failed here, and another worker is still in it.
            Exception: the exception of the function.
        """
        if self._failure:
            self._wait_for_others(last_call, seconds)
        return self.execute(func)

    def _wait_for_others(self, last_call: Sequence[Any], seconds: float) -> None:
        """Refuse to begin a call while another rank is still in one that has failed here.

        That rank may wait in a collective, in which this one would take part during the next call: results would be
        wrong.
        """
        references = list(last_call)
        if not references:
            return
        _, running = use_ray().wait(references, num_returns=len(references), timeout=seconds, fetch_local=False)
        if running:
            raise RuntimeError(
                f"the last call failed on rank {self._rank} ({self._failure}), and rank "
                f"{references.index(running[0])} is still in it, perhaps in a collective that waits for rank "
                f"{self._rank}: call shutdown(), and start() again"
            )

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

"""`horovod.common.elastic`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from farandole.errors import HorovodInternalError, HostsUpdatedInterrupt
from farandole.worker.core.basics import is_initialized
from farandole.worker.elastic.run_decorator import JobWorlds, run_in
from farandole.worker.elastic.state import ObjectState, State

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt", "ObjectState", "State", "run_fn"]


def run_fn(func: Callable[..., Any], reset: Callable[[], Any]) -> Callable[..., Any]:
    """Wrap a training function as `hvd.elastic.run` does; `reset` enters the next world."""
    return run_in(_WorldsByReset(reset), func)


class _WorldsByReset(JobWorlds):
    """Worlds that are entered by the user's function."""

    def __init__(self, reset: Callable[[], Any]) -> None:
        self._reset = reset

    def go_on(self) -> bool:
        return is_initialized()

    def enter_next(self) -> object:
        return self._reset()

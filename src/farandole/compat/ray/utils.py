"""`horovod.ray.utils`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from farandole.base.wire.interfaces import addresses
from farandole.ray.use_ray import use_ray

__all__ = ["detect_nics", "map_blocking", "nics_to_env_var"]


def map_blocking(fn: Callable[[Any], Any], collection: Iterable[Any]) -> list[Any]:
    """Call a function, which returns a Ray object reference, for each element, and return the values."""
    return list(use_ray().get([fn(each) for each in collection]))


def detect_nics(
    settings: Any, all_host_names: Sequence[str] | None = None, node_workers: Sequence[Any] | None = None
) -> set[str]:
    """Return the interfaces of `settings` or, without any, all of this machine. Workers find out which ones connect
    them.
    """
    return set(settings.nics or (each.interface for each in addresses()))


def nics_to_env_var(nics: Iterable[str]) -> dict[str, str]:
    """Return the variables by which libraries find interfaces."""
    names = list(nics)
    return {"HOROVOD_GLOO_IFACE": names[0], "NCCL_SOCKET_IFNAME": ",".join(names)}

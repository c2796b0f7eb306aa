"""`horovod.torch.mpi_ops`: the collectives and the basics of `farandole.torch`, where scripts import them from."""

from __future__ import annotations

from typing import Any

import farandole.torch
from farandole.compat.basics import HorovodBasics
from farandole.compat.support import get_average_backwards_compatibility_fun
from farandole.worker.core.basics import is_homogeneous

__all__ = ["handle_average_backwards_compatibility", "is_homogeneous"]

_basics = HorovodBasics()

handle_average_backwards_compatibility = get_average_backwards_compatibility_fun(farandole.torch)


def __getattr__(name: str) -> Any:
    if name in farandole.torch.__all__:
        return getattr(farandole.torch, name)
    raise AttributeError(f"module 'horovod.torch.mpi_ops' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *farandole.torch.__all__})

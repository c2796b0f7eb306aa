"""A backend for `torch.distributed`, which runs DDP, FSDP2, DeviceMesh and libraries on top of them on farandole's
engine.

Importing this registers the backend `"farandole"` for tensors of CPUs and CUDA GPUs, unless torch has already found it
(`farandole.autoload`).

Example:
    >>> import torch.distributed as dist
    >>> import farandole.torch.distributed
    >>> dist.init_process_group("farandole", store=dist.HashStore(), rank=0, world_size=1)
    >>> dist.destroy_process_group()
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from farandole.torch.collectives.tensors import RAW_STREAMS
from farandole.torch.distributed.process_group import NAME, ProcessGroup

__all__ = ["NAME", "ProcessGroup", "create"]


def create(options: Any, _: Any) -> ProcessGroup:
    """Create a process group for torch."""
    return ProcessGroup(
        options.store,
        options.group_rank,
        options.group_size,
        options.timeout,
        options.group_id,
        options.global_ranks_in_group,
    )


def _register() -> None:
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu", *RAW_STREAMS])


_register()

"""The device of a worker: one of its host's GPUs for each worker."""

from __future__ import annotations

import os

import torch

from farandole.worker.core import basics


def local_device() -> torch.device:
    """Make this worker's GPU the current one, and return it; the CPU if PyTorch finds no GPU.

    It is the GPU of the worker's slot on its host. In an elastic job, `local_rank()` may change, and a new worker may
    get the local rank that another one had at first; the slot never changes, and no two workers have the same. If there
    are more workers than GPUs on a host, some share one.

    Example:
        >>> import farandole.torch as hvd
        >>> hvd.init()
        >>> model = torch.nn.Linear(2, 1).to(hvd.local_device())
    """
    gpus = torch.cuda.device_count()
    if gpus == 0:
        return torch.device("cpu")
    # The launcher of farandole sets it; in an elastic job, it is the slot.
    slot = os.environ.get("FARANDOLE_LOCAL_RANK")
    device = torch.device("cuda", (basics.local_rank() if slot is None else int(slot)) % gpus)
    torch.cuda.set_device(device)
    return device

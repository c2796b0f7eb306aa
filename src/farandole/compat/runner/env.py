"""`horovod.runner.common.util.env`."""

from __future__ import annotations

import os
import re

# What belongs to the shell or to one machine, and is not passed on to others.
IGNORE_REGEXES = {"BASH_FUNC_.*", "OLDPWD", ".*CUDA_VISIBLE_DEVICES", "_HOROVOD_SECRET_KEY", "FARANDOLE_SECRET"}

_RANK_AND_SIZE = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def is_exportable(v: str) -> bool:
    """Return whether a variable of this name should be exported to other machines."""
    return not any(re.fullmatch(pattern, v) for pattern in IGNORE_REGEXES)


def get_env_rank_and_size() -> tuple[int, int]:
    """Return this process's rank and the size of its world, from its launcher's variables; (0, 1) without a launcher.

    Raises:
        RuntimeError: only one of two variables that belong together is set.
    """
    for rank, size in _RANK_AND_SIZE:
        if (rank in os.environ) != (size in os.environ):
            there, lacking = (rank, size) if rank in os.environ else (size, rank)
            raise RuntimeError(f"{there} is set, but {lacking} is not. Start the job with a launcher that sets both.")
        if rank in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1

"""`horovod.runner.util.lsf`."""

from __future__ import annotations

import os


class LSFUtils:
    """The known facts of a job of LSF, the batch system."""

    @staticmethod
    def using_lsf() -> bool:
        """Return whether this process runs in one."""
        return "LSB_JOBID" in os.environ

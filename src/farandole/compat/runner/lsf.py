"""`horovod.runner.util.lsf`."""

from __future__ import annotations

import os


class LSFUtils:
    """Facts about a job of the batch system LSF."""

    @staticmethod
    def using_lsf() -> bool:
        """Return whether this process runs in an LSF job."""
        return "LSB_JOBID" in os.environ

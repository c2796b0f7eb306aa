"""torchrun with restarts: a lost worker ends all of them, and all start again from the last checkpoint.

Workers of one host belong to one torchrun. A worker can join only with a torchrun of its own, so jobs that grow have
one for each worker, as if each had a host.

By default the workers share the store of their torchrun and read in it, after a restart, where those before them
listened (pytorch issue 135712). So the one that is measured runs with the variable that its developers name against
that; what happens without it is measured for one event.
"""

from __future__ import annotations

import sys
from typing import ClassVar

from benchmarks.elastic.jobs import Job, worker_script
from benchmarks.elastic.ports import free_port

_RESTARTS = 1000
_TORCHRUN = (sys.executable, "-m", "torch.distributed.run")


def missing() -> str | None:
    """Return None: it can always be used, because it comes with torch."""
    return None


def plain_command(size: int) -> tuple[str, ...]:
    """Return the command of a job of torch's own DistributedDataParallel that ends when a worker is lost."""
    return (*_TORCHRUN, "--standalone", "--nnodes=1", f"--nproc-per-node={size}", worker_script("torchrun"), "plain")


class TorchrunJob(Job):
    """One torchrun, or one for each worker."""

    environment: ClassVar[dict[str, str]] = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

    def start(self) -> None:
        if self.setting.size < self.setting.most:
            self._port = free_port()
            for _ in range(self.setting.size):
                self.add_worker()
            return
        if not self.setting.elastic:
            self.spawn(plain_command(self.setting.size))
            return
        workers = (f"--nproc-per-node={self.setting.size}", f"--max-restarts={_RESTARTS}")
        command = (*_TORCHRUN, "--standalone", "--nnodes=1", *workers, worker_script("torchrun"))
        self._launcher = self.spawn(command, self.environment)

    def add_worker(self) -> None:
        meeting = ("--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{self._port}", "--rdzv-id=job")
        nodes = (f"--nnodes={self.setting.size - 1}:{self.setting.most}", "--nproc-per-node=1")
        command = (*_TORCHRUN, *nodes, f"--max-restarts={_RESTARTS}", *meeting, worker_script("torchrun"))
        self.spawn(command, self.environment)

    def coordinator(self) -> int:
        return self._launcher.pid


class DefaultTorchrunJob(TorchrunJob):
    """The same job without that variable."""

    environment: ClassVar[dict[str, str]] = {}

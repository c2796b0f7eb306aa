"""torchft: a lighthouse, and for each worker a torchrun of its own, as its README says for one machine."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

from benchmarks.elastic.jobs import Job, worker_script
from benchmarks.elastic.peers.torchrun import plain_command
from benchmarks.elastic.ports import free_port

_RESTARTS = 1000


def _lighthouse() -> str | None:
    return shutil.which("torchft_lighthouse", path=str(Path(sys.executable).parent))


def missing() -> str | None:
    """Return why it cannot be used; None if it can."""
    if importlib.util.find_spec("torchft") is None or _lighthouse() is None:
        return "torchft is not installed; `make bench-elastic` installs it"
    return None


class TorchftJob(Job):
    """A lighthouse and replica groups of one worker each. Not elastic: plain DDP, under one torchrun."""

    def start(self) -> None:
        if not self.setting.elastic:
            self.spawn(plain_command(self.setting.size))
            return
        self._workers = 0
        port = free_port()
        self._address = f"http://localhost:{port}"
        lighthouse = _lighthouse()
        assert lighthouse is not None, "missing() comes first"
        flags = ("--min_replicas", "1", "--quorum_tick_ms", "100", "--join_timeout_ms", "10000")
        self._coordinator = self.spawn((lighthouse, "--bind", f"[::]:{port}", *flags))
        for _ in range(self.setting.size):
            self.add_worker()

    def add_worker(self) -> None:
        torchrun = (sys.executable, "-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=1")
        own = {
            "TORCHFT_LIGHTHOUSE": self._address,
            "REPLICA_GROUP_ID": str(self._workers),
            "NUM_REPLICA_GROUPS": str(self.setting.most),
        }
        flags = (f"--master-port={free_port()}", f"--max-restarts={_RESTARTS}")
        self.spawn((*torchrun, *flags, worker_script("torchft_ddp")), own)
        self._workers += 1

    def coordinator(self) -> int:
        return self._coordinator.pid

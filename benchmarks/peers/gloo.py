"""torch.distributed on gloo, its tensors allocated once and reduced in place."""

from __future__ import annotations

import os
from typing import Any

from benchmarks.computation import compute
from benchmarks.gradients import plan_buckets
from benchmarks.peers.base import WORKER, Call, Launch, Peer, Setup, check, proven, worker_environment

NAME = "gloo"


def missing() -> str | None:
    """Return None: it can always be used, because it comes with torch."""
    return None


def launches(setup: Setup) -> list[Launch]:
    """Return one command for each rank; they meet at a file."""
    common = worker_environment(setup) | {"WORLD_SIZE": str(setup.topology.size)}
    common["GLOO_SOCKET_IFNAME"] = setup.bed.device if setup.bed else "lo"
    return [
        Launch(
            (*(setup.bed.enter(rank // setup.topology.workers) if setup.bed else []), *WORKER),
            common | {"RANK": str(rank)},
        )
        for rank in range(setup.topology.size)
    ]


class GlooPeer(Peer):
    """A rank of the default process group."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        meeting = f"file://{os.environ['BENCHMARK_FOLDER']}/store"
        dist.init_process_group("gloo", init_method=meeting, rank=self.rank, world_size=self.size)
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        self._torch, self._dist = torch, dist

    def barrier(self) -> None:
        self._dist.barrier()

    def leave(self) -> None:
        self._dist.destroy_process_group()

    def _tensor(self, count: int, value: float = 0.0, dtype: str = "float32") -> Any:
        return self._torch.full((count,), value, dtype=getattr(self._torch, dtype))

    def allreduce(self, bytes: int, dtype: str = "float32", where: str = "ordinary") -> Call:
        tensor = self._tensor(bytes // getattr(self._torch, dtype).itemsize, self.rank + 1, dtype)
        all_reduce = self._dist.all_reduce

        def call() -> None:
            all_reduce(tensor)

        return proven(call, self.size, "allreduce", tensor)

    def latency(self) -> Call:
        tensor, all_reduce = self._tensor(1, self.rank + 1), self._dist.all_reduce

        def call() -> None:
            all_reduce(tensor, async_op=True).wait()

        return proven(call, self.size, "latency", tensor)

    def many(self, count: int, bytes: int) -> Call:
        tensors = [self._tensor(bytes // 4, self.rank + 1) for _ in range(count)]
        all_reduce = self._dist.all_reduce

        def call() -> None:
            for work in [all_reduce(tensor, async_op=True) for tensor in tensors]:
                work.wait()

        return proven(call, self.size, "many", *tensors)

    def gradients(self, communicate: bool = True, compute_units: int = 0) -> Call:
        # What DistributedDataParallel does with gradient_as_bucket_view, which saves it the copies.
        buckets = [(self._tensor(elements, self.rank + 1), members) for elements, members in plan_buckets()]
        all_reduce = self._dist.all_reduce

        def call() -> None:
            works = []
            for tensor, members in buckets:
                compute(members * compute_units)
                if communicate:
                    works.append(all_reduce(tensor, async_op=True))
            for work in works:
                work.wait()

        return proven(call, self.size, "gradients", *(tensor for tensor, _ in buckets)) if communicate else call

    def allgather(self, bytes: int) -> Call:
        part, whole = self._tensor(bytes // 4 // self.size, self.rank + 1), self._tensor(bytes // 4)
        self._dist.all_gather_into_tensor(whole, part)
        check(whole[-1].item(), self.size, "allgather")
        return lambda: self._dist.all_gather_into_tensor(whole, part)

    def broadcast(self, bytes: int) -> Call:
        tensor = self._tensor(bytes // 4, self.rank + 1)
        self._dist.broadcast(tensor, src=0)
        check(tensor[-1].item(), 1, "broadcast")
        return lambda: self._dist.broadcast(tensor, src=0)

    def reducescatter(self, bytes: int) -> Call:
        whole, part = self._tensor(bytes // 4, self.rank + 1), self._tensor(bytes // 4 // self.size)
        self._dist.reduce_scatter_tensor(part, whole)
        check(part[-1].item(), self.size * (self.size + 1) / 2, "reducescatter")
        return lambda: self._dist.reduce_scatter_tensor(part, whole)

    def alltoall(self, bytes: int) -> Call:
        sent, received = self._tensor(bytes // 4, self.rank + 1), self._tensor(bytes // 4)
        self._dist.all_to_all_single(received, sent)
        check(received[-1].item(), self.size, "alltoall")
        return lambda: self._dist.all_to_all_single(received, sent)


def join() -> GlooPeer:
    """Enter the process group."""
    return GlooPeer()

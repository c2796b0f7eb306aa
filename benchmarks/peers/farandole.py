"""farandole itself: the public functions of `farandole.torch`, started by `farandole run`.

It also measures the two bounds, because it has what they need: arenas, and an address on every host.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmarks.bounds import Stream, make_copy
from benchmarks.computation import compute
from benchmarks.gradients import resnet50_shapes
from benchmarks.peers.base import WORKER, Call, Launch, Peer, Setup, check, proven, worker_environment
from benchmarks.training import make_step
from farandole.base.request_kind import Kind

if TYPE_CHECKING:
    import torch

NAME = "farandole"
# The alignment of tensors in the arena, in bytes: a cache line, and the widest vector.
ALIGNMENT = 64


def missing() -> str | None:
    """Return None: it can always be used."""
    return None


def launches(setup: Setup) -> list[Launch]:
    """Return one launcher: `farandole run`, or `across` between hosts."""
    environment = worker_environment(setup)
    if setup.bed is None:
        return [
            Launch((sys.executable, "-m", "farandole", "run", "-np", str(setup.topology.size), *WORKER), environment)
        ]
    launcher = (sys.executable, "-m", "benchmarks.peers.across", str(setup.bed.agent), str(setup.topology.workers))
    return [Launch((*setup.bed.enter(0), *launcher, *setup.bed.addresses, "--", *WORKER), environment)]


class FarandolePeer(Peer):
    """A worker of the world."""

    def __init__(self) -> None:
        import torch

        import farandole.torch as hvd
        from farandole.worker.core import basics, buffers

        hvd.init()
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        self._torch, self._hvd, self._buffers = torch, hvd, buffers
        self._engine = basics.current().engine
        self.rank, self.size = hvd.rank(), hvd.size()
        self._stream: Stream | None = None

    def barrier(self) -> None:
        self._hvd.barrier()

    def leave(self) -> None:
        if self._torch.distributed.is_initialized():
            self._torch.distributed.destroy_process_group()
        self._hvd.shutdown()

    def _tensor(self, count: int, value: float = 0.0, dtype: str = "float32", where: str = "arena") -> torch.Tensor:
        """Return a filled tensor in the arena or elsewhere."""
        tensor = self._torch.empty(count, dtype=getattr(self._torch, dtype))
        return (self._in_arena([tensor])[0] if where == "arena" else tensor).fill_(value)

    def _in_arena(self, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return tensors of the same types and shapes that lie one after another in the arena, the last one first."""
        begins, size = [], 0
        for tensor in reversed(like):
            begins.append(size)
            size += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
        block = self._engine.allocate(size)
        assert block is not None, "the arena is too small for the benchmark"
        buffer = block.buffer()
        return [
            self._torch.frombuffer(buffer, dtype=tensor.dtype, count=tensor.numel(), offset=begin).view(tensor.shape)
            for tensor, begin in zip(like, reversed(begins), strict=True)
        ]

    # --- works ---------------------------------------------------------------------------------------------------

    def allreduce(
        self, bytes: int, dtype: str = "float32", where: str = "arena", name: str | None = "allreduce"
    ) -> Call:
        tensor = self._tensor(bytes // getattr(self._torch, dtype).itemsize, self.rank + 1, dtype, where)
        hvd = self._hvd

        def call() -> None:
            hvd.allreduce_(tensor, op=hvd.Sum, name=name)

        return proven(call, self.size, "allreduce", tensor)

    def latency(self) -> Call:
        tensor, hvd = self._tensor(1, self.rank + 1), self._hvd

        def call() -> None:
            hvd.synchronize(hvd.allreduce_async_(tensor, op=hvd.Sum, name="latency"))

        return proven(call, self.size, "latency", tensor)

    def many(self, count: int, bytes: int) -> Call:
        tensors = [self._tensor(bytes // 4, self.rank + 1, where="ordinary") for _ in range(count)]
        named = [(tensor, f"many.{index}") for index, tensor in enumerate(tensors)]
        hvd = self._hvd

        def call() -> None:
            handles = [hvd.allreduce_async_(tensor, op=hvd.Sum, name=name) for tensor, name in named]
            for handle in handles:
                hvd.synchronize(handle)

        return proven(call, self.size, "many", *tensors)

    def many_grouped(self, count: int, bytes: int) -> Call:
        tensors = [self._tensor(bytes // 4, self.rank + 1, where="ordinary") for _ in range(count)]
        hvd = self._hvd

        def call() -> None:
            hvd.grouped_allreduce_(tensors, op=hvd.Sum, name="many_grouped")

        return proven(call, self.size, "many_grouped", *tensors)

    def gradients(self, communicate: bool = True, compute_units: int = 0) -> Call:
        shapes = [self._torch.empty(shape, device="meta", dtype=self._torch.float32) for shape in resnet50_shapes()]
        tensors = [tensor.fill_(self.rank + 1) for tensor in self._in_arena(shapes)]
        named = [(tensor, f"gradient.{index}") for index, tensor in enumerate(tensors)]
        hvd = self._hvd

        def call() -> None:
            handles = []
            for tensor, name in reversed(named):
                compute(compute_units)
                if communicate:
                    handles.append(hvd.allreduce_async_(tensor, op=hvd.Sum, name=name))
            for handle in handles:
                hvd.synchronize(handle)

        return proven(call, self.size, "gradients", *tensors) if communicate else call

    # The results go to memory that has been allocated before, as everywhere in this comparison.

    def allgather(self, bytes: int) -> Call:
        part, whole = self._tensor(bytes // 4 // self.size, self.rank + 1), self._tensor(bytes // 4)
        given, made, buffers = part.numpy(), whole.numpy(), self._buffers

        def call() -> None:
            buffers.collective(Kind.ALLGATHER, given, made, name="allgather")

        call()
        check(whole[-1].item(), self.size, "allgather")
        return call

    def broadcast(self, bytes: int) -> Call:
        tensor = self._tensor(bytes // 4, self.rank + 1)
        data, buffers = tensor.numpy(), self._buffers

        def call() -> None:
            buffers.collective(Kind.BROADCAST, data, name="broadcast")

        call()
        check(tensor[-1].item(), 1, "broadcast")
        return call

    def reducescatter(self, bytes: int) -> Call:
        whole, part = self._tensor(bytes // 4, self.rank + 1), self._tensor(bytes // 4 // self.size)
        given, made, buffers, op = whole.numpy(), part.numpy(), self._buffers, self._hvd.Sum

        def call() -> None:
            buffers.collective(Kind.REDUCESCATTER, given, made, op=op, name="reducescatter")

        call()
        check(part[-1].item(), self.size * (self.size + 1) / 2, "reducescatter")
        return call

    def alltoall(self, bytes: int) -> Call:
        given, made = self._tensor(bytes // 4, self.rank + 1), self._tensor(bytes // 4)
        sent, received, buffers = given.numpy(), made.numpy(), self._buffers

        def call() -> None:
            buffers.collective(Kind.ALLTOALL, sent, received, name="alltoall")

        call()
        check(made[-1].item(), self.size, "alltoall")
        return call

    def step(self, way: str, tokens: int, compression: str = "none") -> Call:
        return make_step(way, tokens, compression)

    def idle(self, seconds: float) -> Call:
        """Sleep, and return the share of a core that this process used meanwhile."""
        import time

        def call() -> float:
            started, used = time.monotonic(), time.process_time()
            time.sleep(seconds)
            return (time.process_time() - used) / (time.monotonic() - started)

        return call

    # --- bounds --------------------------------------------------------------------------------------------------

    def copy(self, bytes: int) -> Call:
        return make_copy(self._engine, self._hvd, bytes)

    def stream(self, bytes: int) -> Call:
        if self._stream is None:
            hosts, workers = os.environ["BENCHMARK_HOSTS"].split(","), int(os.environ["BENCHMARK_WORKERS"])
            self._stream = Stream(hosts, *divmod(self.rank, workers), self._hvd)
        return self._stream.make_call(bytes)


def join() -> FarandolePeer:
    """Enter the world that the launcher made."""
    return FarandolePeer()

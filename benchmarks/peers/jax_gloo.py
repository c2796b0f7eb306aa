"""`jax.distributed` with `psum` in `shard_map`: JAX's own collectives on CPUs, which are gloo's."""

from __future__ import annotations

import importlib.util
import os
import socket
from typing import Any

from benchmarks.gradients import resnet50_shapes
from benchmarks.peers.base import WORKER, Call, Launch, Peer, Setup, check, worker_environment

NAME = "jax.distributed (gloo)"


def missing() -> str | None:
    """Return why it cannot be used; None if it can."""
    return None if importlib.util.find_spec("jax") else "JAX is not installed"


def launches(setup: Setup) -> list[Launch]:
    """Return one command for each rank."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        coordinator = f"127.0.0.1:{listener.getsockname()[1]}"
    common = {**worker_environment(setup), "JAX_PLATFORMS": "cpu", "BENCHMARK_COORDINATOR": coordinator}
    return [Launch(WORKER, {**common, "BENCHMARK_RANK": str(rank)}) for rank in range(setup.topology.size)]


class JaxGlooPeer(Peer):
    """A process of JAX's job."""

    def __init__(self) -> None:
        import jax
        from jax.sharding import NamedSharding, PartitionSpec

        self._jax = jax
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        rank, size = int(os.environ["BENCHMARK_RANK"]), int(os.environ["BENCHMARK_WORKERS"])
        jax.distributed.initialize(os.environ["BENCHMARK_COORDINATOR"], size, rank)
        self.rank, self.size = jax.process_index(), jax.process_count()
        self._mesh = jax.make_mesh((self.size,), ("workers",))
        self._spec = PartitionSpec("workers")
        self._sharding = NamedSharding(self._mesh, self._spec)
        self._meet = self._summing([(1,)])

    def barrier(self) -> None:
        self._meet()

    def leave(self) -> None:
        self._jax.distributed.shutdown()

    def _summing(self, shapes: list[tuple[int, ...]]) -> Call:
        """Return a compiled function that sums arrays, of which each worker has one, over all workers."""
        import numpy as np

        jax = self._jax
        arrays = [
            jax.make_array_from_process_local_data(self._sharding, np.full((1, *shape), self.rank + 1, np.float32))
            for shape in shapes
        ]

        def on_each(given: Any) -> Any:
            return [jax.lax.psum(each, "workers") for each in given]

        mapped = jax.shard_map(on_each, mesh=self._mesh, in_specs=self._spec, out_specs=jax.sharding.PartitionSpec())
        function = jax.jit(mapped)
        return lambda: jax.block_until_ready(function(arrays))

    def compiled(self, bytes: int) -> Call:
        """Return a compiled function with one psum."""
        call = self._summing([(bytes // 4,)])
        check(float(call()[0].addressable_data(0).reshape(-1)[-1]), self.size * (self.size + 1) / 2, "compiled")
        return call

    def gradients(self) -> Call:
        """Return a compiled function that sums arrays of ResNet-50's shapes."""
        call = self._summing([tuple(shape) for shape in resnet50_shapes()])
        for result in call():
            check(float(result.addressable_data(0).reshape(-1)[-1]), self.size * (self.size + 1) / 2, "gradients")
        return call


def join() -> JaxGlooPeer:
    """Enter the job."""
    return JaxGlooPeer()

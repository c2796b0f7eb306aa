"""farandole in functions that JAX compiles, and JAX without it, by the same workers."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

from benchmarks.gradients import resnet50_shapes
from benchmarks.peers.base import WORKER, Call, Launch, Peer, Setup, check, worker_environment

NAME = "farandole with JAX"


def missing() -> str | None:
    """Return why it cannot be used; None if it can."""
    return None if importlib.util.find_spec("jax") else "JAX is not installed"


def launches(setup: Setup) -> list[Launch]:
    """Return one `farandole run`."""
    command = (sys.executable, "-m", "farandole", "run", "-np", str(setup.topology.size), *WORKER)
    return [Launch(command, {**worker_environment(setup), "JAX_PLATFORMS": "cpu"})]


class JaxPeer(Peer):
    """A worker of farandole's world."""

    def __init__(self) -> None:
        import jax

        import farandole.jax as hvd

        hvd.init()
        self._jax, self._hvd = jax, hvd
        self.rank, self.size = hvd.rank(), hvd.size()

    def barrier(self) -> None:
        self._hvd.barrier()

    def leave(self) -> None:
        self._hvd.shutdown()

    def _waiting(self, function: Any, *arguments: Any) -> Call:
        return lambda: self._jax.block_until_ready(function(*arguments))

    def compiled(self, bytes: int) -> Call:
        """Return a compiled function with one allreduce."""
        hvd, jnp = self._hvd, self._jax.numpy
        array = jnp.full(bytes // 4, self.rank + 1, jnp.float32)
        call = self._waiting(self._jax.jit(lambda given: hvd.allreduce(given, op=hvd.Sum)), array)
        check(float(call()[-1]), self.size * (self.size + 1) / 2, "compiled")
        return call

    def eager(self, bytes: int) -> Call:
        """Return one eager allreduce."""
        hvd, jnp = self._hvd, self._jax.numpy
        array = jnp.full(bytes // 4, self.rank + 1, jnp.float32)
        call = self._waiting(lambda given: hvd.allreduce(given, op=hvd.Sum, name="eager"), array)
        check(float(call()[-1]), self.size * (self.size + 1) / 2, "eager")
        return call

    def addition(self, bytes: int) -> Call:
        """Return a compiled function that adds 1: the cost of any call of JAX."""
        return self._waiting(self._jax.jit(lambda given: given + 1), self._jax.numpy.zeros(bytes // 4))

    def gradients(self) -> Call:
        """Return a compiled function that reduces arrays of ResNet-50's shapes."""
        hvd, jnp = self._hvd, self._jax.numpy
        arrays = [jnp.full(shape, self.rank + 1, jnp.float32) for shape in resnet50_shapes()]
        call = self._waiting(self._jax.jit(lambda given: hvd.grouped_allreduce(given, op=hvd.Sum)), arrays)
        for result in call():
            check(float(result.reshape(-1)[-1]), self.size * (self.size + 1) / 2, "gradients")
        return call

    def step(self, distributed: bool, batch: int) -> Call:
        """Return a step of a network of three layers with optax.

        Args:
            distributed: whether the workers share gradients.
            batch: samples of one worker.
        """
        import optax

        jax, jnp, plain = self._jax, self._jax.numpy, optax.sgd(0.01)
        optimizer = self._hvd.distributed(plain) if distributed else plain
        params = [jnp.ones((512, 512), jnp.float32) * 0.001 for _ in range(3)]
        x = jnp.ones((batch, 512), jnp.float32)

        def loss(params: Any) -> Any:
            hidden = x
            for weights in params:
                hidden = jnp.tanh(hidden @ weights)
            return (hidden**2).mean()

        @jax.jit
        def step(params: Any, state: Any) -> Any:
            updates, state = optimizer.update(jax.grad(loss)(params), state)
            return optax.apply_updates(params, updates), state

        return self._waiting(step, params, optimizer.init(params))


def join() -> JaxPeer:
    """Enter the world that the launcher made."""
    return JaxPeer()

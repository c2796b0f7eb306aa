"""A training with JAX in a loop of steps, and its replay with NumPy.

Each worker records the samples that each step has used; the replay computes the gradient of the mean over these, in one
process without farandole, and must have the same parameters at the end.
"""

from __future__ import annotations

import os
import signal
from typing import Any

SAMPLES = 22
RATE = 0.05


def samples_of() -> tuple[Any, Any]:
    """Return all samples: inputs and targets."""
    import numpy as np

    numbers = np.arange(SAMPLES)
    return np.sin(np.outer(numbers + 1.0, [1.0, 2.0, 3.0])), numbers / SAMPLES


def train(options: dict[str, Any]) -> dict[str, Any]:
    """Train, and die at the points in the options. Run by a worker."""
    import time

    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    import farandole.jax as hvd
    from farandole.worker.core.basics import current
    from farandole.worker.elastic import world_changes

    hvd.init()
    worker = current().settings.rank
    death = options.get("deaths", {}).get(worker)
    # A worker that gets no state has wrong values.
    params = {"weights": jnp.full(3, 1.0 if worker == 0 else 5.0), "bias": jnp.zeros(())}
    optimizer = hvd.distributed(optax.sgd(RATE, momentum=0.9))
    state = hvd.elastic.TrainState(params=params, optimizer=optimizer.init(params), seen=0)
    loader = hvd.elastic.ElasticLoader(samples_of(), **options.get("batch", {"global_batch_size": 6}))
    batches = hvd.elastic.AdaptiveBatch(**options["adaptive"]) if "adaptive" in options else None
    loop = hvd.elastic.steps(loader, epochs=options.get("epochs", 2), batches=batches, state=state)

    def die_at(phase: str) -> None:
        if death is not None and (loop.step, phase) == tuple(death):
            os.kill(os.getpid(), signal.SIGKILL)

    def loss_of(params: Any, x: Any, y: Any) -> Any:
        return ((x @ params["weights"] + params["bias"] - y) ** 2).mean()

    def step(params: Any, optimizer_state: Any, x: Any, y: Any) -> Any:
        gradients = jax.grad(loss_of)(params, x, y)
        jax.debug.callback(lambda _: die_at("gradients"), gradients["bias"])
        updates, optimizer_state = optimizer.update(gradients, optimizer_state)
        return optax.apply_updates(params, updates), optimizer_state

    step = jax.jit(step) if options.get("compiled", True) else step
    used: dict[int, list[int]] = {}
    _write_down_steps(loop, used)

    def waits(size: int) -> bool:
        change = world_changes.pending_change()
        return hvd.size() < size and (change is None or hvd.size() + change.added < size)

    for x, y in loop:
        while loop.step in options.get("waits", {}) and waits(options["waits"][loop.step]):
            time.sleep(0.01)
        die_at("begin")
        if options.get("calls"):
            assert float(hvd.allreduce(np.array([float(loop.step)]))[0]) == loop.step
        state.params, state.optimizer = step(state.params, state.optimizer, x, y)
        state.seen = state.seen + 1
    result = {
        "step": loop.step,
        "size": hvd.size(),
        "used": used,
        "adaptation": None if loop._adaptation is None else loop._adaptation.value,
        "rate factor": loop.rate_factor,
        "params": [np.array(leaf) for leaf in jax.tree.leaves(state.params)],
        "seen": int(state.seen),
    }
    hvd.shutdown()
    return result


def _write_down_steps(loop: Any, used: dict[int, list[int]]) -> None:
    """Record the samples that each step of a loop uses, when the step counts."""
    loader = loop._loader
    commit = loader.commit

    def write_down(batch: Any, lost: Any = ()) -> None:
        shares = [share for rank, share in enumerate(batch.shares) if rank not in lost]
        used[loop.step] = [index for share in shares for index in loader.ledger.indices(share)]
        commit(batch, lost)

    loader.commit = write_down


def replay(steps: dict[int, list[int]]) -> list[Any]:
    """Return the parameters after these steps, taken by one process with NumPy: the bias, then the weights."""
    import numpy as np

    inputs, targets = samples_of()
    weights, bias = np.ones(3), 0.0
    trace_weights, trace_bias = np.zeros(3), 0.0
    for number in sorted(steps):
        x, y = inputs[steps[number]], targets[steps[number]]
        error = 2 * (x @ weights + bias - y) / len(y)
        trace_weights, trace_bias = error @ x + 0.9 * trace_weights, error.sum() + 0.9 * trace_bias
        weights, bias = weights - RATE * trace_weights, bias - RATE * trace_bias
    return [np.asarray(bias), weights]


def check(results: list[dict[str, Any]], options: dict[str, Any]) -> None:
    """Compare the workers' records with each other and with the replay."""
    import numpy as np

    steps: dict[int, list[int]] = {}
    for result in results:
        for step, used in result["used"].items():
            assert steps.setdefault(step, used) == used
        for mine, first in zip(result["params"], results[0]["params"], strict=True):
            np.testing.assert_array_equal(mine, first)
        assert result["seen"] == result["step"]
    assert sorted(steps) == list(range(results[0]["step"]))
    used = sorted(index for indices in steps.values() for index in indices)
    assert used == sorted(list(range(SAMPLES)) * options.get("epochs", 2))
    for mine, theirs in zip(results[0]["params"], replay(steps), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-9)

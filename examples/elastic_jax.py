"""Train on the digits with JAX and optax while workers die and come back.

    farandole run -np 4 --min-np 2 python examples/elastic_jax.py --pause 0.05

Kill workers by hand while it trains (`farandole kill --rank 1`): the others go on with the step they are in, new
ones join and get the state from the others' memory, and the accuracy at the end is what it would have been.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import farandole.jax as hvd

Params = list[dict[str, jax.Array]]


def load() -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray, np.ndarray]:
    """Return what to train on, and the images and labels to test with."""
    digits = load_digits()
    images = (digits.images.reshape(-1, 64) / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(images))
    test, train = order[:360], order[360:]
    return (images[train], digits.target[train].astype(np.int32)), images[test], digits.target[test]


def predict(params: Params, images: jax.Array | np.ndarray) -> jax.Array:
    """Return the score of each digit."""
    hidden = jax.nn.relu(images @ params[0]["weights"] + params[0]["biases"])
    return hidden @ params[1]["weights"] + params[1]["biases"]


def loss_of(params: Params, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Return how wrong the predictions are."""
    return optax.softmax_cross_entropy_with_integer_labels(predict(params, images), labels).mean()


def count(workers: int) -> str:
    """Return a number of workers in words."""
    return "1 worker" if workers == 1 else f"{workers} workers"


def main() -> int:
    """Train, and say how well that went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--goal", type=float, default=0.0, help="accuracy below which the exit code is 1")
    parser.add_argument(
        "--pause", type=float, default=0.0, help="seconds after each step, to have time to kill workers"
    )
    given = parser.parse_args()

    hvd.init()
    samples, images, labels = load()
    optimizer = hvd.distributed(optax.sgd(0.1, momentum=0.9))
    params = [
        {
            "weights": jax.random.normal(jax.random.key(1), (fan_in, fan_out)) * fan_in**-0.5,
            "biases": jnp.zeros(fan_out),
        }
        for fan_in, fan_out in ((64, 64), (64, 10))
    ]

    @jax.jit
    def step(params: Params, state: Any, x: jax.Array, y: jax.Array) -> tuple[Params, Any]:
        updates, state = optimizer.update(jax.grad(loss_of)(params, x, y), state, params)
        return optax.apply_updates(params, updates), state

    # The world changes, and with it how many samples a worker has: JAX compiles the step once for each number. The
    # last step of an epoch is left out, as it would have another one.
    loader = hvd.elastic.ElasticLoader(samples, global_batch_size=64, drop_last=True)
    trained = hvd.elastic.TrainState(params=params, optimizer=optimizer.init(params))
    loop = hvd.elastic.steps(loader, epochs=given.epochs, trained=trained)
    for x, y in loop:
        if loop.epoch_begins and hvd.rank() == 0:
            print(f"epoch {loop.epoch + 1} of {given.epochs}: {count(hvd.size())}, step {loop.step}", flush=True)
        trained.params, trained.optimizer = step(trained.params, trained.optimizer, x, y)
        time.sleep(given.pause)

    accuracy = float(np.mean(np.argmax(predict(trained.params, images), axis=1) == labels))
    if hvd.rank() == 0:
        print(f"accuracy {accuracy:.3f} after {loop.step} steps, {count(hvd.size())} at the end")
    return int(accuracy < given.goal)


if __name__ == "__main__":
    sys.exit(main())

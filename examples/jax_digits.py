"""Train on scikit-learn's handwritten digits with JAX and optax, on one worker or on many.

    python examples/jax_digits.py                        # one process
    farandole run -np 2 python examples/jax_digits.py    # two workers

Everything that is there because of several workers begins with `hvd`.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import farandole.jax as hvd

Params = list[dict[str, jax.Array]]


def load() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return images and labels to train on, and others to test with."""
    digits = load_digits()
    images = (digits.data / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(images))
    test, train = order[:360], order[360:]
    return (images[train], digits.target[train]), (images[test], digits.target[test])


def build(seed: int, sizes: tuple[int, ...] = (64, 256, 128, 10)) -> Params:
    """Return the network's parameters."""
    keys = jax.random.split(jax.random.key(seed), len(sizes) - 1)
    return [
        {"weights": jax.random.normal(key, (fan_in, fan_out)) * (2 / fan_in) ** 0.5, "biases": jnp.zeros(fan_out)}
        for key, fan_in, fan_out in zip(keys, sizes, sizes[1:], strict=False)
    ]


def predict(params: Params, images: jax.Array) -> jax.Array:
    """Return the score of each digit."""
    for layer in params[:-1]:
        images = jax.nn.relu(images @ layer["weights"] + layer["biases"])
    return images @ params[-1]["weights"] + params[-1]["biases"]


def loss_of(params: Params, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Return how wrong the predictions are."""
    return optax.softmax_cross_entropy_with_integer_labels(predict(params, images), labels).mean()


def main() -> int:
    """Train, and say how well that went."""
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="images per worker and step")
    parser.add_argument("--goal", type=float, default=0.0, help="accuracy below which the exit code is 1")
    given = parser.parse_args()

    hvd.init()
    (images, labels), (test_images, test_labels) = load()
    images, labels = images[hvd.rank() :: hvd.size()], labels[hvd.rank() :: hvd.size()]
    steps = hvd.broadcast_object(len(images) // given.batch_size, hvd.size() - 1)  # As many on all workers.

    optimizer = hvd.distributed(optax.adamw(0.002 * hvd.size() ** 0.5, weight_decay=1e-4))
    params = build(seed=hvd.rank())  # Each worker begins in its own way...
    params = hvd.broadcast_parameters(params)  # ... and gets the parameters of rank 0.
    state = optimizer.init(params)

    @jax.jit
    def step(params: Params, state: Any, images: jax.Array, labels: jax.Array) -> tuple[Params, Any, jax.Array]:
        loss, gradients = jax.value_and_grad(loss_of)(params, images, labels)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, hvd.allreduce(loss)

    shuffled = np.random.default_rng(hvd.rank())
    for epoch in range(given.epochs):
        order = shuffled.permutation(len(images))
        losses = []
        for batch in np.split(order[: steps * given.batch_size], steps):
            params, state, loss = step(params, state, images[batch], labels[batch])
            losses.append(loss)
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1} of {given.epochs}: loss {np.mean(losses):.4f}", flush=True)

    accuracy = float(np.mean(np.argmax(predict(params, jnp.asarray(test_images)), axis=1) == test_labels))
    digest = hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params))).hexdigest()
    identical = len(set(hvd.allgather_object(digest))) == 1
    if hvd.rank() == 0:
        print(f"test accuracy: {accuracy:.4f}")
        print(f"parameters: {'bit-identical' if identical else 'DIFFERENT'} on {hvd.size()} worker(s)")
    return int(accuracy < given.goal or not identical)


if __name__ == "__main__":
    sys.exit(main())

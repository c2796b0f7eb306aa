"""Train on scikit-learn's handwritten digits with TensorFlow's gradient tape, on one worker or on many.

    python examples/tensorflow2_digits.py                        # one process
    farandole run -np 2 python examples/tensorflow2_digits.py    # two workers

Everything that is there because of several workers begins with `hvd`.
"""

from __future__ import annotations

import argparse
import hashlib
import sys

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import farandole.tensorflow as hvd


def load() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return images and labels to train on, and others to test with."""
    digits = load_digits()
    images = (digits.images[..., None] / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(images))
    test, train = order[:360], order[360:]
    return (images[train], digits.target[train]), (images[test], digits.target[test])


def build() -> keras.Model:
    """Return the network."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )


def main() -> int:
    """Train, and say how well that went."""
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=32, help="images per worker and step")
    parser.add_argument("--goal", type=float, default=0.0, help="accuracy below which the exit code is 1")
    given = parser.parse_args()

    hvd.init()
    keras.utils.set_random_seed(hvd.rank())  # Each worker begins and shuffles in its own way...
    train, (test_images, test_labels) = load()
    dataset = hvd.shard(tf.data.Dataset.from_tensor_slices(train)).shuffle(2000).batch(given.batch_size)
    model = build()
    optimizer = keras.optimizers.Adam(0.002 * hvd.size() ** 0.5)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    hvd.broadcast_variables(model.variables, root_rank=0)  # ... and gets the variables of rank 0.
    hvd.broadcast_variables(optimizer.variables, root_rank=0)

    @tf.function(reduce_retracing=True)
    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    for epoch in range(given.epochs):
        losses = [step(images, labels) for images, labels in dataset]
        loss = hvd.allreduce(tf.reduce_mean(losses))
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1} of {given.epochs}: loss {loss:.4f}", flush=True)

    accuracy = float(np.mean(np.argmax(model(test_images), axis=1) == test_labels))
    digest = hashlib.sha256(b"".join(weight.tobytes() for weight in model.get_weights())).hexdigest()
    identical = len(set(hvd.allgather_object(digest))) == 1
    if hvd.rank() == 0:
        print(f"test accuracy: {accuracy:.4f}")
        print(f"parameters: {'bit-identical' if identical else 'DIFFERENT'} on {hvd.size()} worker(s)")
    return int(accuracy < given.goal or not identical)


if __name__ == "__main__":
    sys.exit(main())

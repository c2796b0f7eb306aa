"""Train on scikit-learn's handwritten digits with Keras, on one worker or on many.

    python examples/keras_digits.py                                            # one process
    farandole run -np 2 python examples/keras_digits.py                        # two workers
    KERAS_BACKEND=torch farandole run -np 2 python examples/keras_digits.py    # or jax, or tensorflow

Everything that is there because of several workers begins with `hvd`.
"""

from __future__ import annotations

import argparse
import hashlib
import sys

import keras
import numpy as np
from sklearn.datasets import load_digits

import farandole.keras as hvd


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
            layers.Dropout(0.1),
            layers.Dense(10),
        ]
    )


def main() -> int:
    """Train, and say how well that went."""
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="images per worker and step")
    parser.add_argument("--checkpoint", help="file for the best model, such as digits.keras")
    parser.add_argument("--goal", type=float, default=0.0, help="accuracy below which the exit code is 1")
    given = parser.parse_args()

    hvd.init()
    keras.utils.set_random_seed(hvd.rank())  # Each worker begins, shuffles and drops out in its own way...
    train, test = load()
    images, labels = hvd.shard(train)
    model = build()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.002 * hvd.size() ** 0.5))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])

    saving = [keras.callbacks.ModelCheckpoint(given.checkpoint, save_best_only=True)] if given.checkpoint else []
    callbacks = [
        hvd.callbacks.Distributed(*saving),  # ... and gets the variables of rank 0.
        keras.callbacks.ReduceLROnPlateau(patience=3),
    ]
    model.fit(
        images,
        labels,
        batch_size=given.batch_size,
        epochs=given.epochs,
        validation_data=hvd.shard(test),
        callbacks=callbacks,
        verbose=2,
    )

    accuracy = float(model.evaluate(*test, verbose=0)[1])
    digest = hashlib.sha256(b"".join(weight.tobytes() for weight in model.get_weights())).hexdigest()
    identical = len(set(hvd.allgather_object(digest))) == 1
    if hvd.rank() == 0:
        print(f"test accuracy: {accuracy:.4f}")
        alike = "bit-identical" if identical else "DIFFERENT"
        print(f"parameters: {alike} on {hvd.size()} worker(s), with {keras.config.backend()}")
    return int(accuracy < given.goal or not identical)


if __name__ == "__main__":
    sys.exit(main())

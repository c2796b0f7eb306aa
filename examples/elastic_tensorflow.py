"""Train on the digits with TensorFlow while workers die and come back.

    farandole run -np 4 --min-np 2 python examples/elastic_tensorflow.py --pause 0.05

Kill workers by hand while it trains (`farandole kill --rank 1`): the others go on, new ones join, and the
accuracy at the end is what it would have been.
"""

from __future__ import annotations

import argparse
import sys
import time

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import farandole.tensorflow as hvd


def load() -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray, np.ndarray]:
    """Return what to train on, and the images and labels to test with."""
    digits = load_digits()
    images = (digits.images.reshape(-1, 64) / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(images))
    test, train = order[:360], order[360:]
    return (images[train], digits.target[train]), images[test], digits.target[test]


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
    keras.utils.set_random_seed(1)
    samples, images, labels = load()
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)])
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    # The world changes, and with it how many samples a worker has: one graph is for any number.
    @tf.function(reduce_retracing=True)
    def train(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients = hvd.elastic.reduce_gradients(gradients, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    loader = hvd.elastic.ElasticLoader(samples, global_batch_size=64)
    loop = hvd.elastic.steps(loader, epochs=given.epochs, model=model, optimizer=optimizer)
    for x, y in loop:
        if loop.epoch_begins and hvd.rank() == 0:
            print(f"epoch {loop.epoch + 1} of {given.epochs}: {count(hvd.size())}, step {loop.step}", flush=True)
        train(x, y)
        time.sleep(given.pause)

    accuracy = float(np.mean(np.argmax(model(images), axis=1) == labels))
    if hvd.rank() == 0:
        print(f"accuracy {accuracy:.3f} after {loop.step} steps, {count(hvd.size())} at the end")
    return int(accuracy < given.goal)


if __name__ == "__main__":
    sys.exit(main())

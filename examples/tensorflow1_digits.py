"""Train on scikit-learn's handwritten digits in the way of TensorFlow 1: a graph, a session and hooks.

    python examples/tensorflow1_digits.py                        # one process
    farandole run -np 2 python examples/tensorflow1_digits.py    # two workers

Everything that is there because of several workers begins with `hvd`.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterator

import numpy as np
import tensorflow.compat.v1 as tf
from sklearn.datasets import load_digits

import farandole.tensorflow as hvd

tf.disable_v2_behavior()


def load() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return images and labels to train on, and others to test with."""
    digits = load_digits()
    images = (digits.images.reshape(-1, 64) / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(images))
    test, train = order[:360], order[360:]
    return (images[train], digits.target[train]), (images[test], digits.target[test])


def batches(images: np.ndarray, labels: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Give random batches, for ever."""
    random = np.random.default_rng(hvd.rank())
    while True:
        chosen = random.integers(0, len(images), size)
        yield images[chosen], labels[chosen]


def dense(inputs: tf.Tensor, units: int, name: str) -> tf.Tensor:
    """Return a layer's outputs."""
    with tf.variable_scope(name):
        kernel = tf.get_variable("kernel", [inputs.shape[1], units], initializer=tf.glorot_uniform_initializer())
        return tf.matmul(inputs, kernel) + tf.get_variable("bias", [units], initializer=tf.zeros_initializer())


def main() -> int:
    """Train, and say how well that went."""
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits.")
    parser.add_argument("--steps", type=int, default=3000, help="for all workers together")
    parser.add_argument("--batch-size", type=int, default=32, help="images per worker and step")
    parser.add_argument("--checkpoints", help="folder in which rank 0 keeps them")
    parser.add_argument("--goal", type=float, default=0.0, help="accuracy below which the exit code is 1")
    given = parser.parse_args()

    hvd.init()
    (images, labels), (test_images, test_labels) = load()
    image = tf.placeholder(tf.float32, [None, 64], name="image")
    label = tf.placeholder(tf.int64, [None], name="label")
    logits = dense(tf.nn.relu(dense(image, 256, "hidden")), 10, "logits")
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=label, logits=logits))
    correct = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), label), tf.float32))

    global_step = tf.train.get_or_create_global_step()
    optimizer = hvd.DistributedOptimizer(tf.train.AdagradOptimizer(0.05 * hvd.size() ** 0.5))
    train = optimizer.minimize(loss, global_step=global_step)

    final = tf.train.FinalOpsHook([correct, *tf.trainable_variables()], {image: test_images, label: test_labels})
    hooks = [
        hvd.BroadcastGlobalVariablesHook(0),  # All workers begin with the variables of rank 0.
        tf.train.StopAtStepHook(last_step=given.steps // hvd.size()),
        final,
    ]
    if hvd.rank() == 0:
        hooks.append(tf.train.LoggingTensorHook({"step": global_step, "loss": loss}, every_n_iter=100))
    data = batches(images, labels, given.batch_size)
    checkpoints = given.checkpoints if hvd.rank() == 0 else None
    with tf.train.MonitoredTrainingSession(checkpoint_dir=checkpoints, hooks=hooks) as session:
        while not session.should_stop():
            some_images, some_labels = next(data)
            session.run(train, {image: some_images, label: some_labels})

    accuracy, *parameters = final.final_ops_values
    digest = hashlib.sha256(b"".join(parameter.tobytes() for parameter in parameters)).hexdigest()
    identical = len(set(hvd.allgather_object(digest))) == 1
    if hvd.rank() == 0:
        print(f"test accuracy: {accuracy:.4f}")
        print(f"parameters: {'bit-identical' if identical else 'DIFFERENT'} on {hvd.size()} worker(s)")
    return int(accuracy < given.goal or not identical)


if __name__ == "__main__":
    sys.exit(main())

"""Train on scikit-learn's handwritten digits with MXNet's gluon, on one worker or on many.

    python examples/mxnet_digits.py                        # one process
    farandole run -np 2 python examples/mxnet_digits.py    # two workers

Everything that is there because of several workers begins with `hvd`. MXNet needs Python 3.10:
docs/get-started/mxnet.md.
"""

from __future__ import annotations

import argparse
import hashlib
import sys

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from sklearn.datasets import load_digits

import farandole.mxnet as hvd


def load() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return images and labels to train on, and others to test with."""
    digits = load_digits()
    images = (digits.images[:, None] / 16).astype(np.float32)
    labels = digits.target.astype(np.float32)
    order = np.random.default_rng(0).permutation(len(images))
    test, train = order[:360], order[360:]
    return (images[train], labels[train]), (images[test], labels[test])


def build() -> gluon.HybridBlock:
    """Return the network, whose parameters get their shapes from the first batch."""
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Conv2D(32, 3, padding=1, activation="relu"),
        gluon.nn.MaxPool2D(),
        gluon.nn.Dense(128, activation="relu"),
        gluon.nn.Dense(10),
    )
    net.initialize(mx.init.Xavier())
    net.hybridize()
    return net


def main() -> int:
    """Train, and say how well that went."""
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=32, help="images per worker and step")
    parser.add_argument("--goal", type=float, default=0.0, help="accuracy below which the exit code is 1")
    given = parser.parse_args()

    hvd.init()
    mx.random.seed(hvd.rank())  # Each worker begins and shuffles in its own way...
    np.random.seed(hvd.rank())
    (images, labels), (test_images, test_labels) = load()
    part = slice(hvd.rank(), len(images) // hvd.size() * hvd.size(), hvd.size())  # equally many for each worker
    dataset = gluon.data.ArrayDataset(images[part], labels[part])
    batches = gluon.data.DataLoader(dataset, given.batch_size, shuffle=True)
    net = build()
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()

    hvd.broadcast_parameters(net.collect_params(), root_rank=0)  # ... and gets the parameters of rank 0.
    trainer = hvd.DistributedTrainer(net.collect_params(), "adam", {"learning_rate": 0.002 * hvd.size() ** 0.5})

    for epoch in range(given.epochs):
        total = mx.nd.zeros((1,))
        for batch, wanted in batches:
            with autograd.record():
                loss = loss_of(net(batch), wanted)
            loss.backward()
            trainer.step(len(batch))
            total += loss.mean()
        loss = hvd.allreduce(total / len(batches)).asscalar()
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1} of {given.epochs}: loss {loss:.4f}", flush=True)

    accuracy = float(np.mean(net(mx.nd.array(test_images)).asnumpy().argmax(axis=1) == test_labels))
    parameters = [each.data().asnumpy() for each in net.collect_params().values()]
    digest = hashlib.sha256(b"".join(each.tobytes() for each in parameters)).hexdigest()
    identical = len(set(hvd.allgather_object(digest))) == 1
    if hvd.rank() == 0:
        print(f"test accuracy: {accuracy:.4f}")
        print(f"parameters: {'bit-identical' if identical else 'DIFFERENT'} on {hvd.size()} worker(s)")
    return int(accuracy < given.goal or not identical)


if __name__ == "__main__":
    sys.exit(main())

"""Train on the digits while workers die and come back.

    farandole run -np 4 --min-np 2 python examples/elastic_digits.py --pause 0.05

Kill workers by hand while it trains (`farandole kill --rank 1`): the others go on, new ones join, and the
accuracy at the end is what it would have been.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset

import farandole.torch as hvd


def load() -> tuple[TensorDataset, torch.Tensor, torch.Tensor]:
    """Return what to train on, and the images and labels to test with."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, train = order[:360], order[360:]
    return TensorDataset(images[train], labels[train]), images[test], labels[test]


def count(workers: int) -> str:
    """Return a number of workers in words."""
    return "1 worker" if workers == 1 else f"{workers} workers"


def main() -> int:
    """Train, and say how well that went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--goal", type=float, default=0.0, help="accuracy below which the exit code is 1")
    parser.add_argument("--largest-batch", type=int, help="let the batch grow from 64 to this, by the noise")
    parser.add_argument(
        "--pause", type=float, default=0.0, help="seconds after each step, to have time to kill workers"
    )
    given = parser.parse_args()

    hvd.init()
    torch.manual_seed(1)
    samples, images, labels = load()
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    loader = hvd.elastic.ElasticLoader(samples, global_batch_size=64)
    batches = hvd.elastic.AdaptiveBatch(64, given.largest_batch) if given.largest_batch else None

    loop = hvd.elastic.steps(loader, epochs=given.epochs, batches=batches, model=model, optimizer=optimizer)
    for x, y in loop:
        if loop.epoch_begins and hvd.rank() == 0:
            print(f"epoch {loop.epoch + 1} of {given.epochs}: {count(hvd.size())}, step {loop.step}", flush=True)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        time.sleep(given.pause)

    accuracy = (model(images).argmax(1) == labels).float().mean().item()
    if hvd.rank() == 0:
        print(f"accuracy {accuracy:.3f} after {loop.step} steps, {count(hvd.size())} at the end")
    return int(accuracy < given.goal)


if __name__ == "__main__":
    sys.exit(main())

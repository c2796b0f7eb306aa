r"""Step 2 of 5: train, on workers that may come and go.

    farandole run -np 2 --min-np 1 --checkpoint-dir OUT/checkpoints --resume auto \
        python train.py OUT/data OUT/trained.pt

Reads train.npz. Writes the trained weights, as PyTorch saves them. When a worker is lost, the others go on with the
samples that it had; when all are lost, the same command goes on from the last checkpoint.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from digits_model import DigitsModel
from torch.utils.data import TensorDataset

import farandole.torch as hvd


def main() -> None:
    """Train, and let one worker write the weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the folder that prepare.py has written")
    parser.add_argument("weights", type=Path, help="the file to write")
    parser.add_argument("--epochs", type=int, default=30)
    given = parser.parse_args()

    hvd.init()
    torch.manual_seed(1)
    arrays = np.load(given.data / "train.npz")
    samples = TensorDataset(torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"]))
    model = DigitsModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    # Of all workers together: so the result does not depend on how many there are.
    loader = hvd.elastic.ElasticLoader(samples, global_batch_size=64)

    loop = hvd.elastic.steps(loader, epochs=given.epochs, model=model, optimizer=optimizer)
    loss = torch.zeros(())
    epoch = -1
    for images, labels in loop:
        if loop.epoch != epoch and hvd.rank() == 0:
            workers = "1 worker" if hvd.size() == 1 else f"{hvd.size()} workers"
            print(f"epoch {loop.epoch + 1} of {given.epochs}: {workers}", flush=True)
        epoch = loop.epoch
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    if hvd.rank() == 0:
        given.weights.parent.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), given.weights)
        # A line like this one is what pipelines read (see docs/how-to/workflow.md).
        print("metrics: " + json.dumps({"steps": loop.step, "loss": round(loss.item(), 4)}), flush=True)


if __name__ == "__main__":
    main()

"""farandole's loop over steps, each of which is committed as a whole or done again.

    farandole run --min-np 2 --max-np 4 -np 4 python workers/farandole_steps.py
    farandole run -np 4 python workers/farandole_steps.py plain

Plain is an ordinary loop, whose job ends when a worker is lost.
"""

from __future__ import annotations

import sys
from itertools import count
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler

import farandole.torch as hvd
from benchmarks.elastic.workers.notebook import Notebook, TinyModel, make_dataset

BATCH = 32
EPOCHS = 1_000_000


def elastic_steps(notebook: Notebook, model: TinyModel, optimizer: torch.optim.Optimizer, dataset: Any) -> None:
    """Train in a world that may change."""
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True)
    loop = hvd.elastic.steps(loader, epochs=EPOCHS, model=model, optimizer=optimizer)
    for images, labels in loop:
        train_step(notebook, loop.step, model, optimizer, images, labels)


def plain_steps(notebook: Notebook, model: TinyModel, optimizer: torch.optim.Optimizer, dataset: Any) -> None:
    """Train as an ordinary script does."""
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    sampler = DistributedSampler(dataset, hvd.size(), hvd.rank())
    loader = DataLoader(dataset, batch_size=BATCH, sampler=sampler)
    step = count()
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            train_step(notebook, next(step), model, optimizer, images, labels)


def train_step(
    notebook: Notebook,
    step: int,
    model: TinyModel,
    optimizer: torch.optim.Optimizer,
    images: torch.Tensor,
    labels: torch.Tensor,
) -> None:
    """Forward, backward, optimizer."""
    notebook.begin(step)
    optimizer.zero_grad()
    F.cross_entropy(model(images), labels).backward()
    optimizer.step()
    notebook.finish(step, hvd.size(), hvd.rank())


def main() -> None:
    """Train until the process is ended."""
    notebook = Notebook()
    hvd.init()
    model = TinyModel()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.layers.parameters(), lr=0.01), model.layers.named_parameters()
    )
    train = plain_steps if "plain" in sys.argv else elastic_steps
    train(notebook, model, optimizer, make_dataset())


if __name__ == "__main__":
    main()

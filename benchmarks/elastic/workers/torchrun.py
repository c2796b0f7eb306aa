"""DistributedDataParallel under torchrun, with a checkpoint to go on from, as torch's tutorial on failures has it.

    torchrun workers/torchrun.py [plain]

Plain is without checkpoints.

See https://docs.pytorch.org/tutorials/beginner/ddp_series_fault_tolerance.html
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks.elastic.workers.notebook import Notebook, TinyModel, make_dataset

BATCH = 32
SAVE_EVERY = 10
SNAPSHOT = Path(os.environ["BENCHMARK_FOLDER"]) / "snapshot.pt"


class Trainer:
    """Trains, and begins where the last snapshot was taken."""

    def __init__(self) -> None:
        self.notebook = Notebook()
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        model = TinyModel()
        self.optimizer = torch.optim.SGD((weight for weight in model.parameters() if weight.requires_grad), lr=0.01)
        self.step, self.epoch = 0, 0
        self.saves = self.rank == 0 and "plain" not in sys.argv
        if SNAPSHOT.exists():
            snapshot = torch.load(SNAPSHOT)
            model.load_state_dict(snapshot["model"])
            self.optimizer.load_state_dict(snapshot["optimizer"])
            self.step, self.epoch = snapshot["step"], snapshot["epoch"]
        self.model = DistributedDataParallel(model)

    def save_snapshot(self) -> None:
        unfinished = SNAPSHOT.with_suffix(".unfinished")
        torch.save(
            {
                "model": self.model.module.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "step": self.step,
                "epoch": self.epoch,
            },
            unfinished,
        )
        unfinished.replace(SNAPSHOT)

    def train(self) -> None:
        dataset = make_dataset()
        sampler = DistributedSampler(dataset)
        loader = DataLoader(dataset, batch_size=BATCH, sampler=sampler)
        while True:
            sampler.set_epoch(self.epoch)
            for images, labels in loader:
                self.train_step(images, labels)
            self.epoch += 1

    def train_step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.notebook.begin(self.step)
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(images), labels).backward()
        self.optimizer.step()
        self.notebook.finish(self.step, self.size, self.rank)
        self.step += 1
        if self.saves and self.step % SAVE_EVERY == 0:
            self.save_snapshot()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    Trainer().train()

"""Train the digits with Lightning's DDP or Fabric on a backend of torch.distributed: lightning_on_ddp.py BACKEND."""

from __future__ import annotations

import json
import sys
from typing import Any

import lightning
import torch
import torch.distributed as dist
import torch.nn.functional as F
from digits_module import Digits, digits
from lightning.pytorch.strategies import DDPStrategy


def with_trainer(backend: str) -> dict[str, Any]:
    """Train with Lightning's Trainer, with accumulated gradients and a head that no loss depends on."""
    lightning.seed_everything(0, verbose=False)
    module = Digits(unused=True)
    trainer = lightning.Trainer(
        strategy=DDPStrategy(process_group_backend=backend, find_unused_parameters=True),
        accelerator="cpu",
        devices=2,
        max_epochs=2,
        accumulate_grad_batches=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, digits(64), digits(64))
    return {"losses": module.losses, "validation": float(trainer.callback_metrics["validation"])}


def with_fabric(backend: str) -> dict[str, Any]:
    """Train with Fabric, in the process group that is there already."""
    fabric = lightning.Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    fabric.seed_everything(0, verbose=False)
    module = Digits()
    model, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
    losses = []
    for i, (x, y) in enumerate(fabric.setup_dataloaders(digits(64))):
        with fabric.no_backward_sync(model, enabled=i % 2 == 0):
            loss = F.cross_entropy(model(x), y)
            fabric.backward(loss)
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return {"losses": losses, "mean": fabric.all_reduce(torch.tensor(losses)).tolist()}


def main() -> None:
    """Print what has been computed, as JSON."""
    backend = sys.argv[1]
    dist.init_process_group(backend)
    report = {"trainer": with_trainer(backend), "fabric": with_fabric(backend), "backend": dist.get_backend()}
    print(json.dumps(report))


if __name__ == "__main__":
    main()

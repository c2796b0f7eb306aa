"""Train the digits with Lightning's Trainer or Fabric: lightning_training.py MODE FOLDER, on `ddp` or `farandole`."""

from __future__ import annotations

import json
import sys
from typing import Any

import lightning
import torch
import torch.nn.functional as F
from digits_module import Digits, digits
from lightning.pytorch.callbacks import ModelCheckpoint
from torchmetrics.classification import MulticlassAccuracy

import farandole.lightning


class WithAccuracy(Digits):
    """Digits whose accuracy is measured by TorchMetrics, and whose loss does not depend on one layer."""

    def __init__(self) -> None:
        super().__init__(unused=True, rate=0.3)
        self.accuracy = MulticlassAccuracy(10, average="micro")

    def validation_step(self, batch: Any, index: int) -> None:
        """Log the loss and the accuracy."""
        super().validation_step(batch, index)
        self.accuracy(self(batch[0]), batch[1])
        self.log("accuracy", self.accuracy)


def make_trainer(strategy: Any, folder: str, **options: Any) -> lightning.Trainer:
    """Return a Trainer for two workers."""
    usual = {"accelerator": "cpu", "devices": 2, "max_epochs": 3, "logger": False, "enable_progress_bar": False}
    checkpoints = ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)
    return lightning.Trainer(
        strategy=strategy, enable_model_summary=False, callbacks=[checkpoints], **{**usual, **options}
    )


def fit(strategy: Any, folder: str, ckpt_path: str | None = None, **options: Any) -> dict[str, Any]:
    """Train, and return the values that must be the same with all strategies."""
    lightning.seed_everything(0, verbose=False)
    module, trainer = WithAccuracy(), make_trainer(strategy, folder, **options)
    trainer.fit(module, digits(64), digits(64, shuffle=False), ckpt_path=ckpt_path, weights_only=False)
    return {
        "losses": module.losses,
        "steps": trainer.global_step,
        "workers": trainer.world_size,
        "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
        "weights": [each.double().sum().item() for each in module.parameters()],
    }


class Manual(Digits):
    """Two optimizers and manual optimization, one of them for the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, index: int) -> None:
        """Make a step with each optimizer."""
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            loss = F.cross_entropy(self(batch[0]), batch[1])
            self.manual_backward(loss)
            self.clip_gradients(optimizer, 1.0, "norm")
            optimizer.step()
        self.losses.append(loss.item())

    def configure_optimizers(self) -> Any:
        """Return an optimizer for each linear layer."""
        return [torch.optim.SGD(self.body[i].parameters(), lr=0.1) for i in (0, 2)]


def fit_by_hand(strategy: Any, folder: str) -> dict[str, Any]:
    """Train by manual optimization."""
    lightning.seed_everything(0, verbose=False)
    module = Manual()
    make_trainer(strategy, folder, max_epochs=1).fit(module, digits(64))
    return {"losses": module.losses, "weights": [each.double().sum().item() for each in module.parameters()]}


def fabric(strategy: Any) -> dict[str, Any]:
    """Train with Fabric, with accumulated and clipped gradients."""
    own = lightning.Fabric(accelerator="cpu", devices=2, strategy=strategy)
    own.launch()
    own.seed_everything(0, verbose=False)
    module = Digits()
    model, optimizer = own.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
    losses = []
    for i, (x, y) in enumerate(own.setup_dataloaders(digits(64))):
        with own.no_backward_sync(model, enabled=i % 2 == 0):
            loss = F.cross_entropy(model(x), y)
            own.backward(loss)
        if i % 2:
            own.clip_gradients(model, optimizer, max_norm=0.5)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    gathered = own.all_gather(torch.tensor(losses[-1]))
    return {"losses": losses, "gathered": gathered.tolist(), "mean": own.all_reduce(torch.tensor(losses)).tolist()}


def main() -> None:
    """Print what has been computed, as JSON."""
    name, folder = sys.argv[1:]
    ddp = name == "ddp"
    assert farandole.lightning.FarandoleStrategy.strategy_name == "farandole"
    trainer = "ddp_find_unused_parameters_true" if ddp else "farandole"
    report = {
        "plain": fit(trainer, f"{folder}/plain"),
        "resumed": fit(trainer, f"{folder}/resumed", f"{folder}/plain/epoch=1.ckpt"),
        "accumulated": fit(trainer, f"{folder}/some", accumulate_grad_batches=4, gradient_clip_val=0.1),
        "manual": fit_by_hand("ddp_find_unused_parameters_true" if ddp else "farandole", f"{folder}/manual"),
    }
    if not ddp:
        report["fabric"] = fabric("farandole")
    else:
        report["fabric"] = fabric("ddp")
    print(json.dumps(report))


if __name__ == "__main__":
    main()

"""The digits of scikit-learn, and a LightningModule that learns them."""

from __future__ import annotations

from typing import Any

import lightning
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits


class Digits(lightning.LightningModule):
    """A small classifier, which keeps the losses of its steps.

    Args:
        unused: whether it has a layer that no loss depends on.
        rate: the learning rate.
    """

    def __init__(self, *, unused: bool = False, rate: float = 0.1) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
        self.spare = torch.nn.Linear(4, 4) if unused else None
        self.rate = rate
        self.losses: list[float] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a score for each digit."""
        return self.body(x)

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        """Return the loss of a batch."""
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        """Log the loss of a batch."""
        x, y = batch
        self.log("validation", F.cross_entropy(self(x), y), sync_dist=True)

    def configure_optimizers(self) -> Any:
        """Return SGD with momentum, and a schedule."""
        optimizer = torch.optim.SGD(self.parameters(), lr=self.rate, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


def dataset() -> torch.utils.data.TensorDataset:
    """Return the 1,797 pictures and their labels."""
    pictures, labels = load_digits(return_X_y=True)
    return torch.utils.data.TensorDataset(torch.tensor(pictures, dtype=torch.float32) / 16, torch.tensor(labels))


def digits(batch_size: int, *, shuffle: bool = True) -> torch.utils.data.DataLoader[Any]:
    """Return a loader of the digits."""
    return torch.utils.data.DataLoader(dataset(), batch_size=batch_size, shuffle=shuffle)

"""Train a network on handwritten digits by a class, in mixed precision: several passes make a step, in one process."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

PASSES = 3


class Trainer:
    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader) -> None:
        self.model = model
        self.optimizer = optimizer
        self.loader = loader
        self.scaler = torch.amp.GradScaler("cpu")

    def train(self, epoch: int) -> None:
        for i, (images, labels) in enumerate(self.loader):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(self.model(images), labels) / PASSES
            self.scaler.scale(loss).backward()
            if (i + 1) % PASSES == 0:
                self.scaler.unscale_(self.optimizer)
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad()
        print(f"epoch {epoch + 1}: loss {loss.item() * PASSES:.4f}")


digits = load_digits()
order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
images = (torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16)[order]
labels = torch.tensor(digits.target)[order]
loader = DataLoader(TensorDataset(images[360:], labels[360:]), batch_size=10, shuffle=True)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
trainer = Trainer(model, optimizer, loader)
for epoch in range(12):
    trainer.train(epoch)

with torch.no_grad():
    accuracy = (model(images[:360]).argmax(1) == labels[:360]).float().mean().item()
print(f"test accuracy: {accuracy:.4f}")

"""Train a network on handwritten digits in mixed precision, in one process: batches by an index, no DataLoader."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

digits = load_digits()
order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
images = (torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16)[order]
labels = torch.tensor(digits.target)[order]
test_images, test_labels = images[:360], labels[:360]
train_images, train_labels = images[360:], labels[360:]

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
# It begins so large that gradients of the first steps overflow, and these steps are skipped.
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)

for epoch in range(15):
    for batch in torch.randperm(len(train_images)).split(32):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(train_images[batch]), train_labels[batch], reduction="sum")
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    print(f"epoch {epoch + 1}: loss {loss.item():.4f}")

with torch.no_grad():
    accuracy = (model(test_images).argmax(1) == test_labels).float().mean().item()
print(f"steps left out at first: {scaler.get_scale() < 2.0**127}")
print(f"test accuracy: {accuracy:.4f}")

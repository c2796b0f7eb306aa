"""Scripts for one process that `farandole init` changes, and the lines that it adds."""

from __future__ import annotations

from pathlib import Path

from farandole.control.rewriting.rewrite import rewrite

PLAIN = Path(__file__).parent / "plain"

TORCH = """\
import torch
from torch.utils.data import DataLoader

loader = DataLoader(data, batch_size=8, shuffle=True)
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(3):
    for x, y in loader:
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
"""

BATCHES = """\
import torch

x, y = load()
count = len(x)
model = torch.nn.Linear(10, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    order = torch.randperm(count)
    for begin in range(0, count, 32):
        batch = order[begin : begin + 32]
        loss = loss_of(model(x[batch]), y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def script(framework: str) -> str:
    return (PLAIN / f"{framework}_digits.py").read_text()


def added(before: str) -> list[str]:
    """Return the lines that are added to a script."""
    diff = rewrite(before).diff("x.py").splitlines()[2:]
    return [line[1:].strip() for line in diff if line.startswith("+") and line[1:].strip()]

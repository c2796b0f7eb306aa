"""Train with accelerate: accelerate_training.py FOLDER [BACKEND]. Without a backend, accelerate makes the group."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.utils import set_seed


class Model(torch.nn.Module):
    """A linear model with a layer that no loss depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = torch.nn.Linear(8, 1), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return one number for each row."""
        return self.used(x)


def train(folder: str) -> dict[str, Any]:
    """Train for two epochs, with a saved state after the first, and the second epoch once more from that state."""
    set_seed(0)
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=2,
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
    )
    x = torch.randn(100, 8)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    def epoch() -> list[float]:
        losses = []
        for batch, target in loader:
            with accelerator.accumulate(model):
                loss = F.mse_loss(model(batch), target)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(accelerator.gather(loss.detach()).mean().item())
        return losses

    first = epoch()
    accelerator.save_state(folder)
    second = epoch()
    accelerator.load_state(folder)
    again = epoch()
    rows = [accelerator.gather_for_metrics(batch) for batch, _ in loader]
    return {
        "workers": accelerator.num_processes,
        "losses": first + second,
        "resumed": again == second,
        "rows": sum(map(len, rows)),
    }


def main() -> None:
    """Print what has been computed, as JSON."""
    folder, *backend = sys.argv[1:]
    if backend:
        dist.init_process_group(backend[0])
    report = train(folder)
    print(json.dumps({**report, "backend": dist.get_backend()}))
    if not backend:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

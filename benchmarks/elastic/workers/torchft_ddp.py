"""torchft's fault-tolerant DistributedDataParallel, as `train_ddp.py` of its repository has it, on gloo.

See https://github.com/meta-pytorch/torchft/blob/main/train_ddp.py
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torchft import DistributedDataParallel, DistributedSampler, Manager, Optimizer, ProcessGroupGloo
from torchft.checkpointing.pg_transport import PGTransport

from benchmarks.elastic.workers.notebook import Notebook, TinyModel, make_dataset

BATCH = 32
REPLICA = int(os.environ["REPLICA_GROUP_ID"])
REPLICAS = int(os.environ["NUM_REPLICA_GROUPS"])


def main() -> None:
    """Train until the process is ended."""
    notebook = Notebook()
    dataset = make_dataset()
    sampler = DistributedSampler(dataset, REPLICA, REPLICAS, group_rank=0, num_replicas=1, shuffle=True)
    loader = DataLoader(dataset, batch_size=BATCH, sampler=sampler)

    def load_state_dict(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optim"])

    def state_dict() -> dict[str, Any]:
        return {"model": model.state_dict(), "optim": optimizer.state_dict()}

    group = ProcessGroupGloo(timeout=timedelta(seconds=5))
    manager = Manager(
        pg=group,
        min_replica_size=1,
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        replica_id=f"train_ddp_{REPLICA}",
        timeout=timedelta(seconds=30),
        checkpoint_transport=PGTransport(group, timeout=timedelta(seconds=10), device=torch.device("cpu")),
    )
    model: Any = DistributedDataParallel(manager, TinyModel())
    trained = (weight for weight in model.parameters() if weight.requires_grad)
    inner = torch.optim.SGD(trained, lr=0.01)
    optimizer = Optimizer(manager, inner)
    committed: list[int] = []
    # The wrapper says nothing about whether it committed: it calls the inner optimizer, or does not.
    inner.register_step_post_hook(lambda *_: committed.append(manager.current_step() - 1))
    while True:
        for images, labels in loader:
            committed.clear()
            notebook.begin(manager.current_step())
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
            if committed:
                notebook.finish(committed[0], manager.num_participants(), REPLICA)
            else:
                notebook.give_up(manager.current_step(), REPLICA)


if __name__ == "__main__":
    main()

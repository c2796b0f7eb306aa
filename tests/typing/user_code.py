"""What users write, as type checkers see it: `mypy` is run on this file, and `assert_type` holds what it must infer.

Nothing here is executed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from typing_extensions import assert_type

import farandole.numpy as npd
import farandole.torch as hvd


def train(model: torch.nn.Module, batches: Iterator[torch.Tensor]) -> float:
    hvd.init()
    assert_type(hvd.rank(), int)
    assert_type(hvd.size(), int)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size()), named_parameters=model.named_parameters()
    )
    # The wrapper is still the user's optimizer.
    assert_type(optimizer, torch.optim.SGD)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    loss = torch.zeros(())
    for batch in batches:
        optimizer.zero_grad()
        loss = model(batch).sum()
        loss.backward()  # type: ignore[no-untyped-call, unused-ignore]  # torch has no annotation there
        optimizer.step()
    total = hvd.allreduce(loss, op=hvd.Average, name="loss")
    assert_type(total, torch.Tensor)
    return total.item()


def collectives(tensor: torch.Tensor) -> None:
    assert_type(hvd.allgather(tensor), torch.Tensor)
    assert_type(hvd.broadcast(tensor, root_rank=0), torch.Tensor)
    assert_type(hvd.grouped_allreduce([tensor, tensor]), list[torch.Tensor])
    assert_type(hvd.broadcast_object({"epoch": 3}, root_rank=0), dict[str, int])
    settings = hvd.broadcast_object({"epoch": 3} if hvd.rank() == 0 else None)
    assert_type(settings, dict[str, int])
    assert_type(hvd.allgather_object(hvd.rank()), list[int])


def arrays() -> None:
    total = npd.allreduce(np.ones(3), op=npd.Sum)
    print(total.shape)


def elastic(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, epoch=0)

    @hvd.elastic.run
    def loop(state: hvd.elastic.TorchState) -> int:
        state.commit()
        return 3

    # None on a worker that joined when the others had finished.
    assert_type(loop(state), int | None)

"""What users write, as `mypy` and `basedpyright` see it; `assert_type` holds what they must infer.

Nothing here is executed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import torch
from typing_extensions import assert_type

import farandole
import farandole.jax as hvdj
import farandole.numpy as npd
import farandole.torch as hvd


def train(model: torch.nn.Module, batches: Iterator[torch.Tensor]) -> float:
    hvd.init()
    assert_type(hvd.rank(), int)
    assert_type(hvd.size(), int)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size()), named_parameters=model.named_parameters()
    )
    # The wrapper is still the user's optimizer, and has methods of its own.
    sgd: torch.optim.SGD = optimizer
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    loss = torch.zeros(())
    for batch in batches:
        optimizer.zero_grad()
        loss = model(batch).sum()
        loss.backward()  # type: ignore[no-untyped-call, unused-ignore]  # torch has no annotation there
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()
    schedule.step()
    assert_type(optimizer.backward_passes_per_step, int)
    total = hvd.allreduce(loss, op=hvd.Average, name="loss")
    assert_type(total, torch.Tensor)
    return total.item() + len(sgd.param_groups)


class Lion(torch.optim.Optimizer):
    """An optimizer of a class that torch does not have."""

    beta = 0.9


def own_optimizer(lion: Lion) -> float:
    optimizer = hvd.DistributedOptimizer(lion)
    assert_type(optimizer, Lion)
    assert isinstance(optimizer, hvd.ReducesGradients)
    optimizer.synchronize()
    return optimizer.beta


def collectives(tensor: torch.Tensor) -> None:
    assert_type(hvd.allgather(tensor), torch.Tensor)
    assert_type(hvd.broadcast(tensor, root_rank=0), torch.Tensor)
    assert_type(hvd.grouped_allreduce([tensor, tensor]), list[torch.Tensor])
    assert_type(hvd.allreduce_async(tensor), int)
    assert_type(hvd.broadcast_object({"epoch": 3}, root_rank=0), dict[str, int])
    settings = hvd.broadcast_object({"epoch": 3} if hvd.rank() == 0 else None)
    assert_type(settings, dict[str, int])
    assert_type(hvd.allgather_object(hvd.rank()), list[int])


def arrays() -> None:
    total = npd.allreduce(np.ones(3), op=npd.Sum)
    assert_type(total.shape, tuple[Any, ...])
    words: list[str] = npd.broadcast_object(["a", "b"])
    print(words)


def trees(params: dict[str, jax.Array], pair: tuple[jax.Array, list[jax.Array]]) -> None:
    assert_type(hvdj.grouped_allreduce(params), dict[str, jax.Array])
    assert_type(hvdj.grouped_allgather(pair), tuple[jax.Array, list[jax.Array]])
    assert_type(hvdj.broadcast_parameters(params), dict[str, jax.Array])
    assert_type(hvdj.elastic.reduce_gradients(params), dict[str, jax.Array])
    assert_type(hvdj.orbax.restore("checkpoint", params), dict[str, jax.Array])

    def loss(params: dict[str, jax.Array], scale: float) -> jax.Array:
        return params["w"].sum() * scale

    step = hvdj.distributed_value_and_grad(loss)
    value, gradients = step(params, 2.0)
    print(value, gradients)


def elastic(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, epoch=0)

    @hvd.elastic.run
    def loop(state: hvd.elastic.TorchState) -> int:
        state.epoch += 1
        state.commit()
        return 3

    # None on a worker that joined when the others had finished.
    assert_type(loop(state), int | None)
    dataset = torch.utils.data.TensorDataset(torch.zeros(64, 4))
    rounds = hvd.elastic.steps(hvd.elastic.ElasticLoader(dataset, batch_size=8), epochs=2, model=model)
    for (_,) in rounds:
        if rounds.epoch_begins:
            assert_type(rounds.step, int)
            rounds.stop()


def jobs() -> None:
    job = farandole.submit("train.py", workers="2:8")
    assert_type(job.name, str)
    for line in job.logs(follow=True):
        print(line.upper())
    print(job.result(timeout=60.0).state)

"""Calls of torch.distributed on our backend that return before they are done: works, futures, and coalesced calls."""

from __future__ import annotations

from typing import Any

import pytest


def _works() -> None:
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    total = size * (size - 1) / 2
    tensors = [torch.full((4,), float(rank)) for _ in range(50)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        assert work.wait() and work.is_completed() and work.is_success() and work.exception() is None
    assert all(tensor.tolist() == [total] * 4 for tensor in tensors)
    assert works[0].result()[0] is tensors[0]

    # Nobody holds this work; the tensor and its memory must last all the same.
    for _ in range(100):
        dist.all_reduce(torch.ones(1000), async_op=True)
    dist.barrier()

    order: list[int] = []
    futures = []
    for number in range(10):
        future = dist.all_reduce(torch.full((4,), float(number)), async_op=True).get_future()
        futures.append(future.then(lambda done, number=number: (order.append(number), done.value()[0].sum().item())[1]))
    assert [future.wait() for future in futures] == [number * 4.0 * size for number in range(10)]
    # Each once, in whatever order: a callback that is attached to what is done already runs at once.
    assert sorted(order) == list(range(10))
    work = dist.all_reduce(torch.ones(1), async_op=True)
    work.wait()
    assert work.get_future() is work.get_future() and work.get_future().done()

    # A callback that begins another call and waits for its future, as DDP's PowerSGD hook does.
    def again(done: Any) -> Any:
        return dist.all_reduce(done.value()[0], async_op=True).get_future().wait()[0]

    future = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(again)
    assert future.wait().item() == size * size
    if rank < 2:
        peer = 1 - rank
        tensor = torch.full((2,), float(rank))
        work = dist.isend(tensor, peer) if rank == 0 else dist.irecv(tensor, peer)
        assert work.get_future().wait()[0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_works_and_futures(groups: Any, size: int) -> None:
    groups.run(size, _works)


def _many_in_flight() -> None:
    """Begin more calls than there are names, before another rank begins any."""
    import torch
    import torch.distributed as dist

    from farandole.worker.core.request import RECURRING_NAMES

    rank, size = dist.get_rank(), dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()
    count = 4 * RECURRING_NAMES + 1
    if rank != 0:
        store.wait(["all collectives of rank 0 have begun"])
    tensors = [torch.tensor([number]) for number in range(count)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    if rank == 0:
        store.set("all collectives of rank 0 have begun", "")
    for work in works:
        work.wait()
    assert torch.cat(tensors).tolist() == [number * size for number in range(count)]

    if rank == 0:
        works = [dist.isend(tensor, 1) for tensor in tensors]
        store.set("all transfers of rank 0 have begun", "")
        for work in works:
            work.wait()
    elif rank == 1:
        store.wait(["all transfers of rank 0 have begun"])
        received = [torch.empty(1, dtype=torch.int64) for _ in tensors]
        for work in [dist.irecv(tensor, 0) for tensor in received]:
            work.wait()
        assert torch.cat(received).tolist() == [number * size for number in range(count)]


def test_call_does_not_wait_for_earlier_calls(groups: Any) -> None:
    groups.run(2, _many_in_flight)


def _coalesced() -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _coalescing_manager

    rank, size = dist.get_rank(), dist.get_world_size()
    total = size * (size - 1) / 2
    tensors = [torch.full((count,), float(rank)) for count in (1, 5)]
    with _coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    assert [tensor.tolist() for tensor in tensors] == [[total], [total] * 5]
    outputs = [torch.empty(size * count) for count in (1, 2)]
    with _coalescing_manager(async_ops=True) as manager:
        for count, output in zip((1, 2), outputs, strict=True):
            dist.all_gather_single(output, torch.full((count,), float(rank)))
    manager.wait()
    assert outputs[1].tolist() == [float(member) for member in range(size) for _ in range(2)]
    parts = [torch.empty(1), torch.empty(2)]
    with _coalescing_manager():
        for count, part in zip((1, 2), parts, strict=True):
            dist.reduce_scatter_single(part, torch.ones(size * count))
    assert [part.tolist() for part in parts] == [[size], [size] * 2]
    with _coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        received = torch.empty(1)
        dist.isend(torch.tensor([float(rank)]), (rank + 1) % size)
        dist.irecv(received, (rank - 1) % size)
    manager.wait()
    assert received.item() == (rank - 1) % size


@pytest.mark.parametrize("size", [2, 3])
def test_coalescing(groups: Any, size: int) -> None:
    groups.run(size, _coalesced)

"""Every collective of torch.distributed on our backend, against what numpy says."""

from __future__ import annotations

from typing import Any

import pytest

SIZES = [2, 3, 4]
sizes = pytest.mark.parametrize("size", SIZES)


# --- reductions ----------------------------------------------------------------------------------------------


def _reductions() -> None:
    import numpy as np
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    ops = {
        dist.ReduceOp.SUM: lambda all_: all_.sum(0),
        dist.ReduceOp.AVG: lambda all_: all_.mean(0),
        dist.ReduceOp.MIN: lambda all_: all_.min(0),
        dist.ReduceOp.MAX: lambda all_: all_.max(0),
        dist.ReduceOp.PRODUCT: lambda all_: all_.prod(0),
    }
    everyone = np.stack([np.arange(1.0, 13.0).reshape(3, 4) + r for r in range(size)])
    for dtype in (torch.float32, torch.float64, torch.int32, torch.int64, torch.bfloat16, torch.float16):
        for op, expected in ops.items():
            if op == dist.ReduceOp.PRODUCT and dtype.itemsize == 2:
                continue  # Does not fit.
            want = torch.from_numpy(expected(everyone))
            if not dtype.is_floating_point:
                want = want.trunc()
            tensor = torch.tensor(everyone[rank], dtype=dtype)
            dist.all_reduce(tensor, op)
            torch.testing.assert_close(tensor.double(), want.to(dtype).double(), rtol=1e-2, atol=0, msg=f"{op} {dtype}")
            # Only the root gets it; the others keep theirs.
            tensor = torch.tensor(everyone[rank], dtype=dtype)
            dist.reduce(tensor, size - 1, op)
            want = want if rank == size - 1 else torch.from_numpy(everyone[rank])
            torch.testing.assert_close(tensor.double(), want.to(dtype).double(), rtol=1e-2, atol=0, msg=f"{op} {dtype}")

    bits = torch.tensor([0b1100, 0b1010, rank])
    for op, fold in ((dist.ReduceOp.BAND, np.bitwise_and), (dist.ReduceOp.BOR, np.bitwise_or)):
        tensor = bits.clone()
        dist.all_reduce(tensor, op)
        assert tensor.tolist() == [0b1100, 0b1010, fold.reduce(np.arange(size))]
    tensor = bits.clone()
    dist.all_reduce(tensor, dist.ReduceOp.BXOR)
    odd = size % 2
    assert tensor.tolist() == [0b1100 * odd, 0b1010 * odd, np.bitwise_xor.reduce(np.arange(size))]
    truth = torch.tensor([rank == 0, True, False])
    for op, want in ((dist.ReduceOp.BAND, [False, True, False]), (dist.ReduceOp.BOR, [True, True, False])):
        tensor = truth.clone()
        dist.all_reduce(tensor, op)
        assert tensor.tolist() == want

    # Every rank has a factor of its own.
    tensor = torch.ones(3)
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(float(rank + 1)))
    assert tensor.tolist() == [size * (size + 1) / 2] * 3


def _shapes() -> None:
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    total = size * (size - 1) / 2

    square = torch.arange(12.0).reshape(3, 4)
    transposed = (square + rank).t()
    dist.all_reduce(transposed)
    assert torch.equal(transposed, (square * size + total).t()) and not transposed.is_contiguous()
    columns = torch.zeros(4, 6)
    columns[:, 1::2] = rank
    dist.broadcast(columns[:, 1::2], size - 1)
    assert columns.sum() == 12 * (size - 1) and not columns[:, ::2].any()

    number = torch.tensor(float(rank))
    dist.all_reduce(number)
    assert number == total
    nothing = torch.empty(0, 3)
    dist.all_reduce(nothing)
    dist.broadcast(nothing, 0)
    assert dist.all_gather_single(torch.empty(0, 3), nothing) is None

    parameter = torch.full((3,), float(rank), requires_grad=True)
    dist.all_reduce(parameter)
    assert parameter.tolist() == [total] * 3 and parameter.is_leaf
    dist.broadcast(parameter, 0)

    waves = torch.tensor([1 + 2j, 3 - 1j]) * (rank + 1)
    dist.all_reduce(waves)
    assert torch.equal(waves, torch.tensor([1 + 2j, 3 - 1j]) * (size * (size + 1) / 2))
    negated = (torch.tensor([1 + 2j]) * rank).conj().imag  # Stored without its sign.
    dist.broadcast(negated, 1)
    assert negated.is_neg() and negated.tolist() == [-2]

    for dtype in (torch.uint16, torch.float8_e4m3fn, torch.complex128, torch.bool):
        tensor = torch.full((2, 3), rank == 1).to(dtype)
        dist.broadcast(tensor, 1)
        assert tensor.to(torch.float64 if not dtype.is_complex else dtype).abs().sum() == 6, dtype

    first, second = torch.ones(2), torch.full((3,), 2.0)
    dist.all_reduce_coalesced([first, second])
    assert first.tolist() == [size] * 2 and second.tolist() == [2 * size] * 3


def _reduce_scatters() -> None:
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    total = size * (size - 1) / 2
    whole = torch.arange(size * 6.0).reshape(size * 2, 3) + rank
    want = (torch.arange(size * 6.0).reshape(size * 2, 3) * size + total)[2 * rank : 2 * rank + 2]
    output = torch.empty(2, 3)
    dist.reduce_scatter_single(output, whole)
    assert torch.equal(output, want)
    assert torch.equal(whole, torch.arange(size * 6.0).reshape(size * 2, 3) + rank)  # The input stays.
    dist.reduce_scatter_single(output, whole, dist.ReduceOp.AVG)
    torch.testing.assert_close(output, want / size)
    dist.reduce_scatter_single(output, whole, dist.ReduceOp.MAX)
    assert torch.equal(output, (torch.arange(size * 6.0).reshape(size * 2, 3) + size - 1)[2 * rank : 2 * rank + 2])
    strided = torch.empty(2, 6)[:, ::2]
    dist.reduce_scatter_single(strided, whole)
    assert torch.equal(strided, want)

    parts = [torch.full((2, 2), float(member + rank)) for member in range(size)]
    output = torch.empty(2, 2)
    dist.reduce_scatter(output, parts)
    assert torch.equal(output, torch.full((2, 2), rank * size + total))
    # Parts of different sizes.
    parts = [torch.full((member + 1,), float(rank)) for member in range(size)]
    output = torch.empty(rank + 1)
    dist.reduce_scatter(output, parts)
    assert output.tolist() == [total] * (rank + 1)
    waves = torch.full((size,), 1j * rank)
    output = torch.empty(1, dtype=torch.complex64)
    dist.reduce_scatter_single(output, waves)
    assert output.tolist() == [1j * total]


@sizes
def test_reductions(groups: Any, size: int) -> None:
    groups.run(size, _reductions)


@sizes
def test_shapes_and_types(groups: Any, size: int) -> None:
    groups.run(size, _shapes)


@sizes
def test_reduce_scatters(groups: Any, size: int) -> None:
    groups.run(size, _reduce_scatters)


# --- movements -----------------------------------------------------------------------------------------------


def _gathers() -> None:
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    mine = torch.arange(6.0).reshape(2, 3) + 100 * rank
    everyone = [torch.arange(6.0).reshape(2, 3) + 100 * member for member in range(size)]

    parts = [torch.empty(2, 3) for _ in range(size)]
    dist.all_gather(parts, mine)
    assert all(map(torch.equal, parts, everyone))
    strided = [torch.empty(3, 2).t() for _ in range(size)]
    dist.all_gather(strided, mine.t().contiguous().t())
    assert all(map(torch.equal, strided, everyone))
    uneven = [torch.empty(member) for member in range(size)]
    dist.all_gather(uneven, torch.full((rank,), float(rank)))
    assert [part.tolist() for part in uneven] == [[float(member)] * member for member in range(size)]

    whole, stacked = torch.empty(2 * size, 3), torch.empty(size, 2, 3)
    dist.all_gather_single(whole, mine)
    dist.all_gather_single(stacked, mine)
    assert torch.equal(whole, torch.cat(everyone)) and torch.equal(stacked, torch.stack(everyone))
    waves = torch.empty(size, dtype=torch.complex64)
    dist.all_gather_single(waves, torch.tensor([1j * rank]))
    assert waves.tolist() == [1j * member for member in range(size)]
    small = torch.empty(size, dtype=torch.float8_e5m2)
    dist.all_gather_single(small, torch.ones(1).to(torch.float8_e5m2))
    assert small.float().tolist() == [1.0] * size
    lists = [[torch.empty(2) for _ in range(size)], [torch.empty(1) for _ in range(size)]]
    dist.all_gather_coalesced(lists, [torch.full((2,), float(rank)), torch.full((1,), float(-rank))])
    assert [part.tolist() for part in lists[0]] == [[float(member)] * 2 for member in range(size)]
    assert [part.tolist() for part in lists[1]] == [[float(-member)] for member in range(size)]

    for root in range(size):
        parts = [torch.empty(2, 3) for _ in range(size)] if rank == root else None
        dist.gather(mine, parts, dst=root)
        assert parts is None or all(map(torch.equal, parts, everyone))
        output = torch.empty(3, 2).t()
        dist.scatter(output, [part + root for part in everyone] if rank == root else None, src=root)
        assert torch.equal(output, everyone[rank] + root)

    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank})
    assert objects == [{"rank": member, "text": "x" * member} for member in range(size)]
    objects = [("from", size - 1)] if rank == size - 1 else [None]
    dist.broadcast_object_list(objects, src=size - 1)
    assert objects == [("from", size - 1)]
    received: list[Any] = [None]
    dist.scatter_object_list(received, list(range(size)) if rank == 0 else None, src=0)
    assert received == [rank]
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(rank, gathered, dst=0)
    assert gathered is None or gathered == list(range(size))


def _exchanges() -> None:
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    # The value says from whom, to whom.
    parts = [torch.full((2,), 10.0 * rank + member) for member in range(size)]
    outputs = [torch.empty(2) for _ in range(size)]
    dist.all_to_all(outputs, parts)
    assert [output.tolist() for output in outputs] == [[10.0 * member + rank] * 2 for member in range(size)]

    rows = torch.full((size, 3), float(rank))
    output = torch.empty(size, 3)
    dist.all_to_all_single(output, rows)
    assert torch.equal(output, torch.arange(float(size))[:, None].expand(size, 3))

    # Rank r sends r + member rows to each member.
    sent, received = [rank + member for member in range(size)], [member + rank for member in range(size)]
    rows = torch.cat([torch.full((count, 2), 10 * rank + member) for member, count in enumerate(sent)])
    output = torch.empty(sum(received), 2, dtype=torch.int64)
    dist.all_to_all_single(output, rows, received, sent)
    want = torch.cat([torch.full((count, 2), 10 * member + rank) for member, count in enumerate(received)])
    assert torch.equal(output, want)


def _transfers() -> None:
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        for member in range(1, size):
            dist.send(torch.full((3,), float(member)), member)
            answer = torch.empty(2, 3).t()
            dist.recv(answer, member, tag=7)
            assert answer.tolist() == [[member, member + 10]] * 3
    else:
        question = torch.empty(3)
        assert dist.recv(question, 0) == 0
        assert question.tolist() == [rank] * 3
        dist.send(torch.tensor([[float(rank)] * 3, [rank + 10.0] * 3]).t(), 0, tag=7)

    # Tags keep transfers of one pair apart, whatever their order.
    after, before = (rank + 1) % size, (rank - 1) % size
    works = [dist.isend(torch.tensor([tag * 1.0]), after, tag=tag) for tag in (1, 2)]
    got = {tag: torch.empty(1) for tag in (1, 2)}
    works += [dist.irecv(got[tag], before, tag=tag) for tag in (2, 1)]
    for work in works:
        work.wait()
    assert {tag: tensor.item() for tag, tensor in got.items()} == {1: 1.0, 2: 2.0}

    received = torch.empty(4)
    batch = [
        dist.P2POp(dist.irecv, received, before),
        dist.P2POp(dist.isend, torch.full((4,), float(rank)), after),
    ]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    assert received.tolist() == [before] * 4
    objects: list[Any] = [None]
    if rank == 0:
        dist.send_object_list([{"hello": 1}], 1)
    elif rank == 1:
        dist.recv_object_list(objects, 0)
        assert objects == [{"hello": 1}]
    dist.barrier()


@sizes
def test_gathers_and_scatters(groups: Any, size: int) -> None:
    groups.run(size, _gathers)


@sizes
def test_exchanges(groups: Any, size: int) -> None:
    groups.run(size, _exchanges)


@sizes
def test_transfers(groups: Any, size: int) -> None:
    groups.run(size, _transfers)


# --- functional collectives ------------------------------------------------------------------------------------


def _functional() -> None:
    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as functional
    import torch.distributed.nn.functional as differentiable

    rank, size = dist.get_rank(), dist.get_world_size()
    total = size * (size - 1) / 2
    mine = torch.full((size, 2), float(rank))
    world = dist.group.WORLD
    assert torch.equal(functional.all_reduce(mine, "sum", world) + 0, torch.full((size, 2), total))
    gathered = functional.all_gather_single(mine, 0, world) + 0
    assert gathered.shape == (size * size, 2) and gathered[size].tolist() == [1.0, 1.0]
    assert (functional.reduce_scatter_single(mine, "sum", 0, world) + 0).tolist() == [[total] * 2]
    assert (functional.broadcast(mine, 1, world) + 0).tolist() == [[1.0] * 2] * size
    exchanged = functional.all_to_all_single(mine, [1] * size, [1] * size, world) + 0
    assert exchanged[:, 0].tolist() == [float(member) for member in range(size)]
    both = functional.all_reduce_coalesced([mine, mine], "avg", world)
    assert all(torch.equal(each + 0, torch.full((size, 2), total / size)) for each in both)

    value = torch.ones(2, requires_grad=True)
    (differentiable.all_reduce(value * (rank + 1)).sum()).backward()
    assert value.grad is not None and value.grad.tolist() == [size * (rank + 1.0)] * 2


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("size", [2, 3])
def test_functional_collectives(groups: Any, size: int) -> None:
    groups.run(size, _functional)


# --- groups --------------------------------------------------------------------------------------------------


def _subgroups() -> None:
    import torch
    import torch.distributed as dist

    import farandole.torch.distributed as backend

    rank, size = dist.get_rank(), dist.get_world_size()
    world = dist.group.WORLD
    assert dist.get_backend() == "farandole" and isinstance(world, backend.ProcessGroup)
    assert dist.get_backend_config() == "cpu:farandole" and world.name() == "farandole"
    # Out of order on purpose: a group's ranks are those of its list.
    low, high = dist.new_group([1, 0]), dist.new_group([size - 2, size - 1])
    for group, members in ((low, {0, 1}), (high, {size - 2, size - 1})):
        if rank in members:
            tensor = torch.full((3,), float(rank))
            dist.all_reduce(tensor, group=group)
            assert tensor.tolist() == [sum(members)] * 3
            dist.broadcast(tensor.fill_(rank), src=max(members), group=group)
            assert tensor.tolist() == [max(members)] * 3
            dist.barrier(group)
            objects: list[Any] = [None, None]
            dist.all_gather_object(objects, rank, group=group)
            assert sorted(objects) == sorted(members)
    alone, _ = dist.new_subgroups(1)
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor, group=alone)
    output = torch.empty(1)
    dist.all_gather_single(output, tensor, group=alone)
    dist.reduce_scatter_single(output, tensor, group=alone)
    dist.all_to_all_single(output, tensor, group=alone)
    dist.barrier(alone)
    assert output.item() == rank
    both = dist.new_group(backend="cpu:farandole")
    dist.all_reduce(tensor, group=both)
    assert tensor.item() == size * (size - 1) / 2
    for group in (both, low, high, alone):
        dist.destroy_process_group(group)


@pytest.mark.parametrize("size", [3, 4])
def test_subgroups(groups: Any, size: int) -> None:
    groups.run(size, _subgroups)

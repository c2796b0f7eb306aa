"""Tensors of GPUs in torch.distributed on our backend: what gloo gives for the same tensors of the CPU.

The GPU is the fake one (tests/gpu_fake), on which what is not waited for shows as wrong numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fake_gpu_device import DEVICE, FakeGpu
from nurseries import Nurseries
from worlds import World, ship

SIZES = [1, 2, 3]
sizes = pytest.mark.parametrize("size", SIZES)


def _init(store: str, size: int) -> None:
    import os
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    from farandole.torch.collectives.tensors import RAW_STREAMS
    from farandole.torch.distributed import NAME, create

    FakeGpu.of_environment().load()
    RAW_STREAMS[DEVICE] = lambda index: torch.accelerator.current_stream(f"{DEVICE}:{index}").native_handle
    dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu", DEVICE])
    rank, limit = int(os.environ["FARANDOLE_RANK"]), timedelta(seconds=60)
    dist.init_process_group(NAME, init_method=f"file://{store}", rank=rank, world_size=size, timeout=limit)


@pytest.fixture(scope="module")
def run(
    fake_gpu: FakeGpu, nurseries: Nurseries, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Any]]:
    """Return a function that runs a function on all ranks of a world, each with its own GPU."""
    folder = tmp_path_factory.mktemp("stores")
    worlds: dict[int, World] = {}

    def on_all_ranks(size: int, body: Callable[..., Any], *arguments: Any) -> list[Any]:
        ship(body)
        if size not in worlds or worlds[size].broken:
            variables = {**fake_gpu.environment(), "FAKE_GPU_DELAY_US": "300"}
            worlds[size] = World(nurseries["torch"], size, variables)
            worlds[size].run(_init, str(folder / f"{size}-{len(list(folder.iterdir()))}"), size)
        return worlds[size].run(body, *arguments)

    yield on_all_ranks
    for world in worlds.values():
        world.close()


# --- collectives -------------------------------------------------------------------------------------------------


def _collectives() -> None:
    import torch
    import torch.distributed as dist

    def results(device: str, group: Any) -> dict[str, list[torch.Tensor]]:
        """Return the result of each collective, followed by one more operation in the current stream."""
        rank, size = dist.get_rank(), dist.get_world_size()
        got: dict[str, list[torch.Tensor]] = {}

        def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            count = torch.Size(shape).numel()
            numbers = torch.arange(count, dtype=torch.float64).reshape(shape) + 10 * rank
            return numbers.to(dtype).to(device) + 1

        def nothing(*shape: int) -> torch.Tensor:
            return torch.full(shape, -1.0, device=device)

        def keep(name: str, *outputs: torch.Tensor) -> None:
            got[name] = [(output + 1).cpu() for output in outputs]

        for dtype in (torch.float32, torch.float64, torch.int32, torch.int64, torch.float16):
            for op in (dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX):
                one = tensor(3, 4, dtype=dtype)
                dist.all_reduce(one, op, group=group)
                keep(f"all_reduce {dtype} {op}", one)
        one = tensor(3, 4)
        dist.reduce(one, size - 1, group=group)
        keep("reduce", *([one] if rank == size - 1 else []))
        one = tensor(3, 4, dtype=torch.int64)
        dist.all_reduce(one, dist.ReduceOp.BXOR, group=group)
        keep("bitwise", one)
        one = tensor(3, 4).t()
        dist.all_reduce(one, group=group)
        keep("transposed", one)
        one = torch.tensor(rank + 1.0).to(device)
        dist.all_reduce(one, group=group)
        keep("a number", one)
        one = nothing(0, 3)
        dist.all_reduce(one, group=group)
        keep("nothing", one)
        one = tensor(4)
        dist.broadcast(one, size - 1, group=group)
        keep("broadcast", one)
        parts = [nothing(2, 3) for _ in range(size)]
        dist.all_gather(parts, tensor(2, 3), group=group)
        keep("all_gather", *parts)
        whole = nothing(2 * size, 3)
        dist.all_gather_single(whole, tensor(2, 3), group=group)
        keep("all_gather_single", whole)
        one = nothing(2, 3)
        dist.reduce_scatter_single(one, tensor(2 * size, 3), group=group)
        keep("reduce_scatter_single", one)
        one = nothing(2)
        dist.reduce_scatter(one, [tensor(2) + member for member in range(size)], group=group)
        keep("reduce_scatter", one)
        one = nothing(size, 3)
        dist.all_to_all_single(one, tensor(size, 3), group=group)
        keep("all_to_all_single", one)
        sent, received = [rank + member for member in range(size)], [member + rank for member in range(size)]
        one = nothing(sum(received), 2)
        dist.all_to_all_single(one, tensor(sum(sent), 2), received, sent, group=group)
        keep("uneven all_to_all_single", one)
        parts = [nothing(2, 3) for _ in range(size)] if rank == 0 else None
        dist.gather(tensor(2, 3), parts, group=group)
        keep("gather", *(parts or []))
        one = nothing(2, 3)
        dist.scatter(one, [tensor(2, 3) * member for member in range(size)] if rank == 0 else None, group=group)
        keep("scatter", one)
        if size > 1:
            one = nothing(3)
            for work in (
                dist.isend(tensor(3), (rank + 1) % size, group=group),
                dist.irecv(one, (rank - 1) % size, group=group),
            ):
                work.wait()
            keep("transfer", one)
        objects: list[Any] = [None] * size
        dist.all_gather_object(objects, rank, group=group)
        assert objects == list(range(size))
        dist.barrier(group=group)
        return got

    gloo = dist.new_group(backend="gloo")
    expected = results("cpu", gloo)
    dist.destroy_process_group(gloo)
    for device in ("cpu", DEVICE):
        for name, outputs in results(device, dist.group.WORLD).items():
            torch.testing.assert_close(outputs, expected[name], msg=lambda text, name=name: f"{name}: {text}")


@sizes
def test_collectives(run: Callable[..., Any], size: int) -> None:
    run(size, _collectives)


# --- streams -------------------------------------------------------------------------------------------------------


def _streams() -> None:
    import time

    import torch
    import torch.distributed as dist

    def complete(works: list[Any]) -> None:
        deadline = time.monotonic() + 50
        while not all(work.is_completed() for work in works):
            assert time.monotonic() < deadline
            time.sleep(0.001)

    driver = FakeGpu.of_environment().load()
    rank, size = dist.get_rank(), dist.get_world_size()
    total = size * (size + 1) / 2
    side = torch.Stream(device=DEVICE)
    mine = torch.full((1000,), rank + 1.0, device=DEVICE)

    # Made and waited for in different streams, with what follows in both; the thread waits for no GPU.
    torch.accelerator.synchronize()
    driver.reset_counts()
    outcomes = []
    for number in range(30):
        tensor = mine * number
        work = dist.all_reduce(tensor, async_op=True)
        with side:
            work.wait()
            outcomes.append((number, tensor + 1))
        work.wait()
        outcomes.append((number, tensor * 2 - number * total + 1))
        transposed = torch.stack([mine, mine]).t()
        work = dist.all_reduce(transposed, async_op=True)
        with side:
            work.wait()  # Copies back what was reduced in a copy.
        outcomes.append((1, transposed + 1) if work.wait() else (0, transposed))
    waits = driver.count("host_waits")
    torch.accelerator.synchronize()
    for number, outcome in outcomes:
        assert (outcome.cpu() == number * total + 1).all()
    assert waits == 0

    # The stream that waits stands still, and the thread goes on.
    driver.hold(side)
    work = dist.all_reduce(tensor, async_op=True)
    with side:
        work.wait()
    driver.release(side)
    side.synchronize()
    complete([work])
    assert work.is_success()

    # The stream of the input stands still, so the work is not completed; then it is, though nobody waits for it.
    torch.accelerator.synchronize()
    current = torch.accelerator.current_stream()
    driver.hold(current)
    work = dist.all_reduce(tensor, async_op=True)
    assert not work.is_completed()
    driver.release(current)
    complete([work])

    # Nobody waits, and the memory lasts.
    works = [dist.all_reduce(torch.ones(1000, device=DEVICE), async_op=True) for _ in range(30)]
    complete(works)
    assert works[7].result()[0].cpu().tolist() == [size] * 1000


def _futures() -> None:
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    total = size * (size + 1) / 2
    mine = torch.full((1000,), rank + 1.0, device=DEVICE)
    for number in range(20):
        work = dist.all_reduce(mine * number, async_op=True)
        doubled = work.get_future().then(lambda done: done.value()[0] * 2)
        assert ((doubled.wait() + 1).cpu() == 2 * number * total + 1).all()

    def again(done: Any) -> Any:
        return dist.all_reduce(done.value()[0] + 0, async_op=True).get_future().wait()[0]

    future = dist.all_reduce(mine.clone(), async_op=True).get_future().then(again)
    assert (future.wait().cpu() == size * total).all()


def _mistakes() -> None:
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    here, there = torch.ones(2), torch.ones(2, device=DEVICE)
    with pytest.raises(ValueError, match=f"must be on one device, not cpu, {DEVICE}:0"):
        dist.all_gather([torch.empty(2)] * size, there)
    with pytest.raises(ValueError, match="must be on one device"):
        dist.all_to_all_single(there, here)
    with pytest.raises(ValueError, match="must be on one device"):
        dist.all_reduce_coalesced([here, there])
    with pytest.raises(ValueError, match=f"dense tensors of cpu and {DEVICE}, not on a .* on meta"):
        dist.all_reduce(torch.ones(2, device="meta"))
    if size > 1:
        with pytest.raises(dist.DistBackendError, match="rank 0"):
            dist.all_reduce(here if rank == 0 else there)
    dist.all_reduce(there)
    assert there.cpu().tolist() == [size] * 2


@sizes
def test_current_stream_waits_and_thread_does_not(run: Callable[..., Any], size: int) -> None:
    run(size, _streams)


@sizes
def test_futures(run: Callable[..., Any], size: int) -> None:
    run(size, _futures)


@pytest.mark.parametrize("size", [1, 2])
def test_tensors_on_several_devices_are_refused(run: Callable[..., Any], size: int) -> None:
    run(size, _mistakes)


# --- training ------------------------------------------------------------------------------------------------------


def _ddp(options: dict[str, Any], hook: str) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.nn.parallel import DistributedDataParallel

    rank = dist.get_rank()

    def train(device: str, group: Any) -> list[torch.Tensor]:
        torch.manual_seed(1)
        layers = torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh()
        model = torch.nn.Sequential(*layers, torch.nn.Linear(64, 5)).to(device)
        # Small buckets, so that there are several in flight.
        model = DistributedDataParallel(model, process_group=group, bucket_cap_mb=0.01, **options)
        if hook:
            model.register_comm_hook(group, getattr(default_hooks, hook))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        generator = torch.Generator().manual_seed(rank)
        for step in range(10):
            optimizer.zero_grad()
            inputs = torch.randn(2, 8, 20, generator=generator).to(device)
            if step % 2:
                with model.no_sync():
                    model(inputs[0]).square().mean().backward()
            model(inputs[1]).square().mean().backward()
            optimizer.step()
        return [parameter.detach().cpu() for parameter in model.parameters()]

    gloo = dist.new_group(backend="gloo")
    expected = train("cpu", gloo)
    dist.destroy_process_group(gloo)
    torch.testing.assert_close(train(DEVICE, dist.group.WORLD), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("size", "options", "hook"),
    [
        (1, {}, ""),
        (2, {}, ""),
        (2, {"gradient_as_bucket_view": True}, ""),
        (2, {}, "fp16_compress_hook"),
        (3, {"gradient_as_bucket_view": True}, ""),
    ],
)
def test_ddp(run: Callable[..., Any], size: int, options: dict[str, Any], hook: str) -> None:
    run(size, _ddp, options, hook)


def _sharded() -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    rank, size = dist.get_rank(), dist.get_world_size()

    def train(device: str) -> list[torch.Tensor]:
        mesh = dist.init_device_mesh(device, (size,))
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(20, 33), torch.nn.Tanh(), torch.nn.Linear(33, 5)).to(device)
        for layer in (model[0], model[2], model):
            fully_shard(layer, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        generator = torch.Generator().manual_seed(rank)
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(8, 20, generator=generator).to(device)).square().mean().backward()
            optimizer.step()
        return [parameter.full_tensor().detach().cpu() for parameter in model.parameters()]

    torch.testing.assert_close(train(DEVICE), train("cpu"), rtol=1e-5, atol=1e-6)


def _dtensors() -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    size = dist.get_world_size()
    mesh = dist.init_device_mesh(DEVICE, (size,))
    torch.manual_seed(0)
    left, right = torch.randn(6, 7), torch.randn(7, 4)
    columns = distribute_tensor(left.to(DEVICE), mesh, [Shard(1)])
    rows = distribute_tensor(right.to(DEVICE), mesh, [Shard(0)])
    product = (columns @ rows).redistribute(mesh, [Shard(0)])
    torch.testing.assert_close(product.full_tensor().cpu(), left @ right)
    torch.testing.assert_close(product.redistribute(mesh, [Replicate()]).to_local().cpu(), left @ right)


@pytest.mark.filterwarnings("ignore")
@sizes
def test_fsdp2(run: Callable[..., Any], size: int) -> None:
    run(size, _sharded)


@pytest.mark.filterwarnings("ignore")
@sizes
def test_dtensors(run: Callable[..., Any], size: int) -> None:
    run(size, _dtensors)

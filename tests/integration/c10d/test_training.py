"""Training on our backend gives what the same training on gloo gives, in the same processes.

Sums of two numbers are the same in any order, so with two ranks most of these agree bit for bit, and say so.
"""

from __future__ import annotations

from typing import Any

import pytest

STEPS = 20


def _ddp(options: dict[str, Any], hook: str, exact: bool) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel

    rank, size = dist.get_rank(), dist.get_world_size()

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(30, 20, sparse=options.get("sparse", False))
            self.body = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.BatchNorm1d(64), torch.nn.GELU())
            self.heads = torch.nn.ModuleList(torch.nn.Linear(64, 5) for _ in range(2))

        def forward(self, words: torch.Tensor, step: int) -> torch.Tensor:
            hidden = self.body(self.embedding(words))
            if options.get("find_unused_parameters"):
                return self.heads[(step + rank) % 2](hidden)  # Each rank leaves out another one.
            return self.heads[0](hidden) + self.heads[1](hidden)

    def train(group: Any) -> list[torch.Tensor]:
        torch.manual_seed(1)
        keywords = {name: value for name, value in options.items() if name not in ("sparse", "accumulate")}
        # Small buckets, so that there are several in flight. PowerSGD wants one: its callbacks begin collectives, and
        # with several buckets their order is a matter of luck.
        keywords["bucket_cap_mb"] = 25 if hook == "powerSGD" else 0.01
        model = DistributedDataParallel(Model(), process_group=group, **keywords)
        if hook == "powerSGD":
            state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=2)
            model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        elif hook == "bf16":
            # torch asks for NCCL before it takes its own hook under its own name.
            model.register_comm_hook(group, lambda state, bucket: default_hooks.bf16_compress_hook(state, bucket))
        elif hook:
            model.register_comm_hook(group, getattr(default_hooks, hook))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(rank)
        for step in range(STEPS):
            optimizer.zero_grad()
            words = torch.randint(30, (4, 8), generator=generator)
            if options.get("accumulate"):
                with model.no_sync():
                    model(words[0], step).square().mean().backward()
            model(words[1], step).square().mean().backward()
            optimizer.step()
        return [tensor.detach() for tensor in (*model.parameters(), *model.buffers())]

    gloo = dist.new_group(backend="gloo")
    ours, theirs = train(dist.group.WORLD), train(gloo)
    dist.destroy_process_group(gloo)
    for mine, other in zip(ours, theirs, strict=True):
        if exact and size == 2:
            assert torch.equal(mine, other)
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)
        everyone = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(everyone, mine)
        if mine is not ours[-1] and mine.dtype.is_floating_point and mine.dim() > 1:
            assert all(torch.equal(mine, each) for each in everyone)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("options", "hook", "exact"),
    [
        ({}, "", True),
        ({"gradient_as_bucket_view": True, "accumulate": True}, "", True),
        ({"find_unused_parameters": True}, "", True),
        ({"static_graph": True}, "", True),
        ({"sparse": True}, "", True),
        ({}, "fp16_compress_hook", True),
        ({}, "bf16", True),
        ({}, "powerSGD", False),
    ],
    ids=lambda value: str(value) or "no hook",
)
def test_ddp(groups: Any, options: dict[str, Any], hook: str, exact: bool) -> None:
    groups.run(2, _ddp, options, hook, exact)


@pytest.mark.filterwarnings("ignore")
def test_ddp_of_three(groups: Any) -> None:
    groups.run(3, _ddp, {"gradient_as_bucket_view": True}, "", False)


def _compiled() -> None:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    def train(compiled: bool) -> list[torch.Tensor]:
        torch.manual_seed(1)
        # The buffers are broadcast, and the buckets rebuilt, while compiled code runs.
        layers = torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 2)
        model = DistributedDataParallel(torch.nn.Sequential(*layers))
        run = torch.compile(model, backend="eager") if compiled else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            run(torch.full((2, 4), float(step)) + torch.arange(2.0)[:, None]).square().sum().backward()
            optimizer.step()
        return list(model.parameters())

    for mine, other in zip(train(True), train(False), strict=True):
        torch.testing.assert_close(mine, other)


@pytest.mark.filterwarnings("ignore")
def test_compiled_ddp(groups: Any) -> None:
    groups.run(2, _compiled)


# --- FSDP2, meshes, DTensor ------------------------------------------------------------------------------------


def _fsdp(mixed: bool) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    rank, size = dist.get_rank(), dist.get_world_size()

    def train(group: Any, reshard: bool) -> list[torch.Tensor]:
        torch.manual_seed(1)
        # Sizes that no world divides.
        model = torch.nn.Sequential(
            torch.nn.Linear(13, 31), torch.nn.GELU(), torch.nn.Linear(31, 31), torch.nn.GELU(), torch.nn.Linear(31, 5)
        )
        mesh = DeviceMesh.from_group(group, "cpu")
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if mixed else MixedPrecisionPolicy()
        for layer in (*model, model):
            if any(True for _ in layer.parameters(recurse=layer is model)):
                fully_shard(layer, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        generator = torch.Generator().manual_seed(rank)
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(8, 13, generator=generator)).float().square().mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return [parameter.full_tensor().detach() for parameter in model.parameters()]

    gloo = dist.new_group(backend="gloo")
    ours, theirs = train(dist.group.WORLD, True), train(gloo, True)
    for mine, other in zip(ours, theirs, strict=True):
        if size == 2:
            assert torch.equal(mine, other)
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)
    for mine, other in zip(ours, train(dist.group.WORLD, False), strict=True):
        assert torch.equal(mine, other)
    dist.destroy_process_group(gloo)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("size", "mixed"), [(2, False), (2, True), (3, False)])
def test_fully_shard(groups: Any, size: int, mixed: bool) -> None:
    groups.run(size, _fsdp, mixed)


def _mesh() -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    import farandole.torch.distributed as backend

    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    assert all(isinstance(group, backend.ProcessGroup) for group in mesh.get_all_groups())
    tensor = torch.tensor([float(rank)])
    dist.all_reduce(tensor, group=mesh.get_group("model"))
    assert tensor.item() == (1.0 if rank < 2 else 5.0)

    whole = torch.arange(35.0).reshape(5, 7)
    placements = [Shard(0), Shard(1), Replicate()]
    for first in placements:
        for second in placements:
            sharded = distribute_tensor(whole, mesh, [first, second])
            for third in placements:
                for fourth in placements:
                    assert torch.equal(sharded.redistribute(mesh, [third, fourth]).full_tensor(), whole)
    parts = DTensor.from_local(torch.ones(4, 4) * (rank + 1), mesh, [Partial(), Partial()])
    assert parts.full_tensor()[0, 0] == 10
    assert parts.redistribute(mesh, [Shard(0), Replicate()]).to_local().tolist() == [[10.0] * 4] * 2

    # Tensor parallel within "model", sharded over "data", against the same on one rank.
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    alone = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    alone.load_state_dict(model.state_dict())
    parallelize_module(model, mesh["model"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    ours = torch.optim.SGD(model.parameters(), lr=0.1)
    theirs = torch.optim.SGD(alone.parameters(), lr=0.1)
    for _ in range(5):
        batch = torch.randn(4, 6)
        for each, optimizer in ((model, ours), (alone, theirs)):
            optimizer.zero_grad()
            each(batch).square().mean().backward()
            optimizer.step()
    for mine, other in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine.full_tensor(), other, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_device_mesh_and_dtensor(groups: Any) -> None:
    groups.run(4, _mesh)

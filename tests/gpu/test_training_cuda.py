"""On a GPU: batch normalisation over all ranks, sparse gradients, Adasum's steps, optimizer state."""

from __future__ import annotations

import torch

import farandole.torch as hvd


def test_sync_batch_norm(world):
    def body():
        layer = hvd.SyncBatchNorm(3).cuda()
        plain = torch.nn.BatchNorm2d(3).cuda()
        generator = torch.Generator().manual_seed(1)
        everything = torch.randn(5, 3, 2, 2, generator=generator).cuda()
        rows = [3, 2]
        mine = everything.split(rows)[hvd.rank()].clone().requires_grad_()
        whole = everything.clone().requires_grad_()
        ours, theirs = layer(mine), plain(whole)
        ours.pow(3).sum().backward()
        theirs.pow(3).sum().backward()
        torch.testing.assert_close(ours, theirs.split(rows)[hvd.rank()], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(mine.grad, whole.grad.split(rows)[hvd.rank()], rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(layer.running_var, plain.running_var)
        with torch.autocast("cuda", dtype=torch.float16):
            assert layer(mine.half()).dtype == torch.float16

    world.run(body)


def test_sparse_gradients_and_state(world):
    def body():
        model = torch.nn.Embedding(5, 2, sparse=True).cuda()
        optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=0.1 * (hvd.rank() + 1))
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.tensor([hvd.rank(), 3]).cuda()).sum().backward()
            optimizer.step()
        assert model.weight.grad.is_cuda and model.weight.grad.is_sparse
        assert model.weight.grad.to_dense()[:, 0].tolist() == [0.5, 0.5, 0, 1, 0]
        first = hvd.broadcast(model.weight.detach(), root_rank=0)
        assert torch.equal(first, model.weight.detach())

    world.run(body)


def test_steps_of_adasum(world):
    def body():
        weight = torch.nn.Parameter(torch.zeros(2, device="cuda"))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), op=hvd.Adasum)
        weight.grad = torch.eye(2, device="cuda")[hvd.rank() % 2]
        optimizer.step()
        assert weight.tolist() == [-1.0, -1.0]

    world.run(body)

"""Giving all workers the same start."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import torch

import farandole.torch as hvd


@pytest.mark.parametrize("form", ["state_dict", "named_parameters", "parameters", "list"])
def test_broadcast_parameters(worlds, form):
    """Dicts, pairs and plain tensors, from any root; also tensors that are not contiguous, and none at all."""

    def body(form):
        for root in range(hvd.size()):
            torch.manual_seed(hvd.rank())
            model = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3))
            model = model.to(memory_format=torch.channels_last)
            forms = {
                "state_dict": model.state_dict,
                "named_parameters": model.named_parameters,
                "parameters": model.parameters,
                "list": lambda model=model: list(model.named_parameters()),
            }
            hvd.broadcast_parameters(forms[form](), root_rank=root)
            torch.manual_seed(root)
            wanted = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3))
            for ours, theirs in zip(model.parameters(), wanted.parameters(), strict=True):
                assert torch.equal(ours, theirs)
        hvd.broadcast_parameters({}, root_rank=0)

    worlds.run(2, body, form)


def test_values_that_are_no_tensors(worlds):
    def body():
        state = {"weight": torch.full((2,), float(hvd.rank())), "epoch": hvd.rank(), "name": f"rank {hvd.rank()}"}
        hvd.broadcast_parameters(state, root_rank=1)
        assert (state["weight"] == 1.0).all() and state["epoch"] == 1 and state["name"] == "rank 1"

    worlds.run(2, body)


def test_what_is_no_parameters(worlds):
    def body():
        for wrong in (5, "weights", torch.ones(2), [1, 2], None):
            try:
                hvd.broadcast_parameters(wrong, root_rank=0)
            except ValueError as error:
                assert "invalid params of type" in str(error)
            else:
                raise AssertionError(f"{wrong} went through")

    worlds.run(2, body)


OPTIMIZERS = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    "Adam": {"lr": 0.01, "betas": (0.8, 0.9), "amsgrad": True},
    "AdamW": {"lr": 0.01},
    "Adagrad": {"lr": 0.01},
    "RMSprop": {"lr": 0.01, "centered": True},
    "Rprop": {"lr": 0.01},
    "LBFGS": {"lr": 0.1},
}


def _stepped(name, steps):
    torch.manual_seed(hvd.rank())
    model = torch.nn.Linear(3, 2)
    options = dict(OPTIMIZERS[name])
    options["lr"] *= hvd.rank() + 1
    optimizer = getattr(torch.optim, name)(model.parameters(), **options)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(1, 3) * (hvd.rank() + 1)).square().sum()
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)
    return model, optimizer


def _numbers(value):
    """Return a state dict with tensors as lists, to compare."""
    if isinstance(value, torch.Tensor):
        return ("tensor", str(value.dtype), value.tolist())
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_numbers(item) for item in value)
    return value


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("root", [0, 1])
def test_broadcast_optimizer_state(worlds, name, steps, root):
    """State and options of the root, with their Python types; the objects that schedulers hold stay the same ones."""

    def body(name, steps, root):
        model, optimizer = _stepped(name, steps)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        wanted = _numbers(optimizer.state_dict()) if hvd.rank() == root else None
        groups, group = optimizer.param_groups, optimizer.param_groups[0]
        hvd.broadcast_optimizer_state(optimizer, root_rank=root)
        assert optimizer.param_groups is groups and optimizer.param_groups[0] is group
        for ours, was in zip(model.parameters(), before, strict=True):
            assert torch.equal(ours, was)
        wanted = hvd.broadcast_object(wanted, root_rank=root)
        assert _numbers(optimizer.state_dict()) == wanted

    worlds.run(2, body, name, steps, root)


def test_only_one_rank_has_state(worlds):
    """A worker that restored a checkpoint, and one that did not."""

    def body():
        _, optimizer = _stepped("Adam", 3 if hvd.rank() == 0 else 0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        return _numbers(optimizer.state_dict())

    first, second = worlds.run(2, body)
    assert first == second and len(first["state"]) == 2


def test_state_of_a_distributed_optimizer(worlds):
    def body():
        model, plain = _stepped("SGD", 1)
        optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
        return [parameter.detach().numpy() for parameter in model.parameters()]

    results = worlds.run(2, body)
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_objects_that_only_cloudpickle_can_pickle(worlds):
    def body():
        factor = 3
        tripled = hvd.broadcast_object((lambda number: number * factor) if hvd.rank() == 0 else None)
        assert tripled(2) == 6
        point = collections.namedtuple("point", "x y")
        gathered = hvd.allgather_object(point(hvd.rank(), 1))
        assert [tuple(entry) for entry in gathered] == [(rank, 1) for rank in range(hvd.size())]

    worlds.run(2, body)


def test_tensors_inside_the_graph(worlds):
    """What the engine writes in place is known to autograd: a saved value that it changed is refused."""

    def body():
        tensor = torch.full((2,), 3.0)
        weight = torch.ones(2, requires_grad=True)
        product = weight * tensor
        hvd.allreduce_(tensor, op=hvd.Sum)
        try:
            product.sum().backward()
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
        else:
            raise AssertionError("autograd did not see the write")
        hvd.broadcast_(torch.nn.Parameter(torch.ones(2)), 0)
        with torch.inference_mode():
            assert float(hvd.allreduce(torch.ones(1), op=hvd.Sum)) == hvd.size()
            hvd.allreduce_(torch.ones(1))

    worlds.run(2, body)

"""A small model and its training, in one process or in all workers of a world."""

from __future__ import annotations

import torch

import farandole.torch as hvd

PARAMETERS = 4


def make_model(seed=0):
    """Return a small model, the same on every rank."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))


def make_data(rows=12):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, 6, generator=generator), torch.randn(rows, 3, generator=generator)


def make_optimizer(model, kind="sgd"):
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def flat(model):
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).numpy()


def train(model, optimizer, inputs, targets, steps=5, set_to_none=True, passes=1):
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=set_to_none)
        for x, y in zip(inputs.chunk(passes), targets.chunk(passes), strict=True):
            loss = torch.nn.functional.mse_loss(model(x), y)
            (loss / passes).backward()
        optimizer.step()


def train_alone(kind="sgd", **how):
    """Return the parameters after a training in one process with all data."""
    model = make_model()
    inputs, targets = make_data()
    train(model, make_optimizer(model, kind), inputs, targets, **how)
    return flat(model)


def train_together(kind, arguments, how):
    """Train with this rank's share of the data; return the parameters."""
    model = make_model()
    inputs, targets = make_data()
    share = slice(hvd.rank(), None, hvd.size())
    named = model.named_parameters()
    optimizer = hvd.DistributedOptimizer(make_optimizer(model, kind), named, **arguments)
    train(model, optimizer, inputs[share], targets[share], **how)
    return flat(model)

"""DistributedOptimizer with compressions that are a part of the reduction."""

from __future__ import annotations

import pytest
import torch

import farandole.torch as hvd

RECIPES = {
    "int8": lambda: hvd.Compression.int8,
    "topk": lambda: hvd.Compression.topk(0.1),
    "powersgd": lambda: hvd.Compression.powersgd(2),
}


def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(20, 40), torch.nn.Tanh(), torch.nn.Linear(40, 3))


def make_data():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(64, 20, generator=generator)
    return inputs, torch.stack([inputs[:, 0] * inputs[:, 1], inputs[:, 2].sin(), inputs[:, 3:].mean(1)], dim=1)


def train(name, how, steps):
    """Train on this rank's share of the data; return the losses, the parameters and the optimizer."""
    model = make_model()
    inputs, targets = (part[hvd.rank() :: hvd.size()] for part in make_data())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    compression = hvd.Compression.none if name is None else RECIPES[name]()
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=compression, **how)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(hvd.allreduce(loss.detach(), name="loss").item())
    return losses, torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]), optimizer


def trained(name, how):
    _, parameters, _ = train(name, how, steps=6)
    return parameters.numpy().tobytes()


def final_loss(name):
    losses, _, _ = train(name, {}, steps=120)
    return losses[0], losses[-1]


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("how", [{}, {"groups": 1}, {"op": hvd.Sum}], ids=["plain", "grouped", "sum"])
def test_all_ranks_and_all_runs_have_the_same_bits(worlds, name, how):
    first = worlds.run(3, trained, name, how)
    assert len(set(first)) == 1
    assert worlds.run(3, trained, name, how) == first


@pytest.mark.parametrize("name", RECIPES)
def test_compressed_training_learns_almost_as_well(worlds, name):
    begin, uncompressed = worlds.run(2, final_loss, None)[0]
    _, compressed = worlds.run(2, final_loss, name)[0]
    assert uncompressed < 0.3 * begin
    assert compressed < uncompressed + 0.1 * begin


def forget(name):
    """Return what is remembered after some steps, and after a state was loaded."""
    _, _, optimizer = train(name, {}, steps=2)
    feedback = optimizer._reducer._front_end.feedback
    before = len(feedback.states)
    optimizer.load_state_dict(optimizer.state_dict())
    return before, len(feedback.states)


@pytest.mark.parametrize("name", RECIPES)
def test_loading_a_state_forgets_what_was_not_sent(worlds, name):
    # PowerSGD remembers nothing of biases and of matrices that are too small to be worth it.
    assert worlds.run(2, forget, name) == [({"powersgd": 2}.get(name, 4), 0)] * 2


def refuse():
    for op in (hvd.Max, hvd.Adasum):
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(ValueError, match=r"op=hvd\.Average and op=hvd\.Sum"):
            hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression=hvd.Compression.int8, op=op)


def test_other_operations_are_refused(worlds):
    worlds.run(2, refuse)


def count_rounds():
    """Return how many rounds of agreement a step of PowerSGD takes, at most, once all is known."""
    model = torch.nn.Sequential(*[torch.nn.Linear(30, 30) for _ in range(12)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(
        optimizer, model.named_parameters(), compression=hvd.Compression.powersgd(1), groups=1
    )
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 30)).sum().backward()
        before = hvd.stats()["rounds"]
        optimizer.step()
    return hvd.stats()["rounds"] - before


def test_a_step_of_powersgd_takes_two_rounds_and_not_two_for_each_matrix(worlds):
    # The biases, and what becomes ready on one rank while another is still at it, may take rounds of their own.
    assert max(worlds.run(2, count_rounds)) <= 6

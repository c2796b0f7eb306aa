"""Ways to train that people have: mixed precision, accumulation, parameters that come and go.

What N ranks do with their shares is compared with what one process does with everything.
"""

from __future__ import annotations

import contextlib
import copy

import numpy as np
import pytest
import torch

import farandole.torch as hvd


def make_model(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def make_data(rows=12):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, 6, generator=generator), torch.randn(rows, 3, generator=generator)


def share_of(data):
    return [tensor[hvd.rank() :: hvd.size()] for tensor in data]


def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def mse(model, inputs, targets):
    return torch.nn.functional.mse_loss(model(inputs), targets)


def flat(model):
    return torch.cat([parameter.detach().reshape(-1).float() for parameter in model.parameters()]).numpy()


def compare(worlds, loop, size=2, rtol=2e-5, atol=2e-6, arguments=None):
    """Run `loop(model, optimizer, inputs, targets)` on shares, and alone on everything."""

    def body(loop, arguments):
        model = make_model()
        optimizer = hvd.DistributedOptimizer(make_optimizer(model), model.named_parameters(), **arguments)
        loop(model, optimizer, *share_of(make_data()))
        return flat(model)

    results = worlds.run(size, body, loop, arguments or {})
    model = make_model()
    loop(model, make_optimizer(model), *make_data())
    for result in results:
        np.testing.assert_allclose(result, flat(model), rtol=rtol, atol=atol)
        np.testing.assert_array_equal(result, results[0])


# --- mixed precision -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overflows", [False, True])
def test_a_gradient_scaler(worlds, overflows):
    """Horovod's recipe. Where the first scale is too large, all ranks leave out the same step."""

    def loop(model, optimizer, inputs, targets):
        scale = 2.0**127 if overflows else 2.0**10
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, backoff_factor=2.0**-100, growth_interval=100)
        for _ in range(6):
            optimizer.zero_grad()
            scaler.scale(64 * mse(model, inputs, targets)).backward()
            distributed = hasattr(optimizer, "synchronize")
            if distributed:
                optimizer.synchronize()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            with optimizer.skip_synchronize() if distributed else contextlib.nullcontext():
                scaler.step(optimizer)
            scaler.update()
        assert (scaler.get_scale() < scale) == overflows

    compare(worlds, loop)


@pytest.mark.parametrize("compression", ["none", "bf16"])
def test_bf16_autocast(worlds, compression):
    def loop(model, optimizer, inputs, targets):
        for _ in range(5):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = mse(model, inputs, targets)
            loss.backward()
            optimizer.step()

    compare(worlds, loop, rtol=2e-2, atol=2e-2, arguments={"compression": getattr(hvd.Compression, compression)})


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_models_of_16_bits(worlds, dtype):
    def body(dtype):
        model = make_model().to(getattr(torch, dtype))
        optimizer = hvd.DistributedOptimizer(make_optimizer(model), model.named_parameters())
        inputs, targets = (tensor.to(getattr(torch, dtype)) for tensor in share_of(make_data()))
        for _ in range(3):
            optimizer.zero_grad()
            mse(model, inputs, targets).backward()
            optimizer.step()
            assert all(parameter.grad.dtype == parameter.dtype for parameter in model.parameters())
        return flat(model)

    results = worlds.run(2, body, dtype)
    np.testing.assert_array_equal(results[0], results[1])


# --- gradients -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("groups", [None, 2])
def test_accumulation(worlds, passes, groups):
    """Micro-batches, the number of which is given later; the gradients of all are summed."""

    def loop(model, optimizer, inputs, targets):
        if hasattr(optimizer, "set_backward_passes_per_step"):
            optimizer.set_backward_passes_per_step(passes)
        for _ in range(4):
            for x, y in zip(inputs.chunk(passes), targets.chunk(passes), strict=True):
                (mse(model, x, y) / passes).backward()
            optimizer.step()
            optimizer.zero_grad()

    compare(worlds, loop, arguments={"groups": groups})


def test_the_number_of_passes_changes_from_the_next_step_on(worlds):
    def body():
        weight = torch.nn.Parameter(torch.zeros(2))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), op=hvd.Sum)
        weight.sum().backward()
        optimizer.set_backward_passes_per_step(2)
        optimizer.step()
        assert (weight.grad == hvd.size()).all()
        optimizer.zero_grad()
        weight.sum().backward()
        weight.sum().backward()
        optimizer.step()
        assert (weight.grad == 2 * hvd.size()).all()

    worlds.run(2, body)


def test_gradients_by_hand_and_gradients_that_were_replaced(worlds):
    """What counts is what lies in `grad` at the launch, and after the step there is what was reduced."""

    def body():
        weight = torch.nn.Parameter(torch.zeros(2))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), op=hvd.Sum)
        for _ in range(3):
            weight.grad = torch.full((2,), hvd.rank() + 1.0)
            optimizer.step()
            assert (weight.grad == 3.0).all()
        optimizer.zero_grad()
        (weight * (hvd.rank() + 1)).sum().backward()
        weight.grad = torch.full((2,), 100.0)
        optimizer.step()
        assert (weight.grad == 3.0).all()
        assert (weight == -12.0).all()

    worlds.run(2, body)


@pytest.mark.parametrize("scheme", ["checkpoint", "retain_graph", "channels_last", "tied"])
def test_unusual_graphs(worlds, scheme):
    def body(scheme):
        from torch.utils.checkpoint import checkpoint

        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Conv2d(2, 2, 1), torch.nn.Tanh(), torch.nn.Conv2d(2, 2, 1))
        if scheme == "channels_last":
            model = model.to(memory_format=torch.channels_last)
        if scheme == "tied":
            model[2].weight = model[0].weight
        plain = copy.deepcopy(model)
        passes = 2 if scheme == "retain_graph" else 1
        optimizer = hvd.DistributedOptimizer(
            make_optimizer(model), model.named_parameters(), backward_passes_per_step=passes
        )
        alone = make_optimizer(plain)
        everything = torch.randn(4, 2, 3, 3, generator=torch.Generator().manual_seed(2))
        for each, stepper, batch in ((model, optimizer, everything[hvd.rank() :: 2]), (plain, alone, everything)):
            for _ in range(3):
                stepper.zero_grad()
                output = checkpoint(each, batch, use_reentrant=False) if scheme == "checkpoint" else each(batch)
                loss = output.square().mean()
                for left in reversed(range(passes)):
                    loss.backward(retain_graph=left > 0)
                stepper.step()
        np.testing.assert_allclose(flat(model), flat(plain), rtol=1e-5, atol=1e-6)

    worlds.run(2, body, scheme)


# --- parameters ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [None, 1])
def test_unfreezing(worlds, groups):
    """A layer that is frozen when the optimizer is wrapped, trained later, and frozen again."""

    def loop(model, optimizer, inputs, targets):
        for trained in (False, True, True, False, False, True):
            model[0].requires_grad_(trained)
            optimizer.zero_grad()
            mse(model, inputs, targets).backward()
            optimizer.step()
            assert (model[0].weight.grad is not None) == trained

    def body(groups):
        model = make_model()
        model[0].requires_grad_(False)
        optimizer = hvd.DistributedOptimizer(make_optimizer(model), model.named_parameters(), groups=groups)
        loop(model, optimizer, *share_of(make_data()))
        return flat(model)

    model = make_model()
    loop(model, make_optimizer(model), *make_data())
    for result in worlds.run(2, body, groups):
        np.testing.assert_allclose(result, flat(model), rtol=2e-5, atol=2e-6)


def test_a_group_that_is_added_later(worlds):
    def loop(model, optimizer, inputs, targets):
        scale = torch.nn.Parameter(torch.ones(3))
        for step in range(4):
            if step == 2:
                optimizer.add_param_group({"params": [scale], "lr": 0.5})
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs) * scale, targets).backward()
            optimizer.step()
        with torch.no_grad():
            model[2].bias.mul_(scale)

    compare(worlds, loop)


def test_adversaries(worlds):
    """Two networks that are trained in turns, each frozen while the other learns."""

    def body():
        torch.manual_seed(0)
        maker, judge = torch.nn.Conv2d(1, 10, 1), torch.nn.Conv2d(10, 1, 1)
        makers = hvd.DistributedOptimizer(torch.optim.SGD(maker.parameters(), lr=0.01), maker.named_parameters())
        judges = hvd.DistributedOptimizer(
            torch.optim.SGD(judge.parameters(), lr=0.01), [(f"judge.{name}", p) for name, p in judge.named_parameters()]
        )
        batch = torch.full((1, 1, 4, 4), hvd.rank() + 1.0)
        for turn in range(6):
            maker.requires_grad_(turn % 2 == 0)
            judge.requires_grad_(turn % 2 == 1)
            makers.zero_grad()
            judges.zero_grad()
            judge(maker(batch)).square().mean().backward()
            (judges if turn % 2 else makers).step()
        return flat(maker), flat(judge)

    results = worlds.run(2, body)
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_line_search_with_losses_that_differ(worlds):
    """LBFGS decides by the loss how often it looks: every rank is shown the same one, so all look equally often."""

    def body():
        model = make_model().double()
        inputs, targets = (tensor.double() for tensor in share_of(make_data()))
        optimizer = torch.optim.LBFGS(model.parameters(), lr=1.0, max_iter=8, line_search_fn="strong_wolfe")
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        looked = 0

        def closure():
            nonlocal looked
            looked += 1
            optimizer.zero_grad()
            loss = mse(model, inputs, targets) * (1 + hvd.rank())
            loss.backward()
            return loss

        losses = [float(optimizer.step(closure)) for _ in range(4)]
        return looked, losses, flat(model)

    first, second = worlds.run(2, body)
    assert first[:2] == second[:2] and first[1][-1] < first[1][0] / 4
    np.testing.assert_array_equal(first[2], second[2])


def test_closures_of_other_optimizers_return_this_ranks_loss(worlds):
    def body():
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0))

        def closure():
            optimizer.zero_grad()
            loss = (weight + hvd.rank()).sum()
            loss.backward()
            return loss

        return float(optimizer.step(closure))

    assert worlds.run(2, body) == [0.0, 1.0]

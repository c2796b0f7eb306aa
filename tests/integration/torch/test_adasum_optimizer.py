"""DistributedOptimizer with op=Adasum: every rank steps, and the steps are put together."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import farandole.torch as hvd


def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2)).double()


def make_optimizer(kind, model):
    if kind == "LBFGS":
        return torch.optim.LBFGS(model.parameters(), lr=0.3, max_iter=4)
    if kind == "SGD":
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return torch.optim.Adam(model.parameters(), lr=0.05)


def loss_of(model, rank, step):
    batch = torch.randn(5, 4, generator=torch.Generator().manual_seed(10 * rank + step), dtype=torch.float64)
    return (model(batch) - rank).square().mean()


def flat(model):
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).numpy()


def one_step(optimizer, model, rank, step):
    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, rank, step)
        loss.backward()
        return loss

    return optimizer.step(closure)


def together(kind, arguments):
    """Train for some steps; return the parameters, and the last loss here."""
    model = make_model()
    optimizer = make_optimizer(kind, model)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=hvd.Adasum, **arguments)
    for step in range(4):
        loss = one_step(optimizer, model, hvd.rank(), step)
    return flat(model), float(loss)


def adasum(left, right):
    """Return the two vectors' Adasum, as its authors define it."""
    product = left @ right
    scale_left = 1 - product / (2 * left @ left) if left.any() else 1.0
    scale_right = 1 - product / (2 * right @ right) if right.any() else 1.0
    return scale_left * left + scale_right * right


def expected_of_two(kind):
    """Play two ranks in one process."""
    models = [make_model() for _ in range(2)]
    optimizers = [make_optimizer(kind, model) for model in models]
    for step in range(4):
        starts = [[parameter.detach().clone() for parameter in model.parameters()] for model in models]
        for rank in range(2):
            one_step(optimizers[rank], models[rank], rank, step)
        with torch.no_grad():
            for start, *pair in zip(starts[0], *(model.parameters() for model in models), strict=True):
                deltas = [(parameter - start).reshape(-1).numpy() for parameter in pair]
                joined = torch.from_numpy(adasum(*deltas)).reshape(start.shape)
                for parameter in pair:
                    parameter.copy_(start + joined)
    return flat(models[0])


@pytest.mark.parametrize("kind", ["SGD", "Adam", "LBFGS"])
def test_two_ranks(worlds, kind):
    """Also LBFGS, whose number of closure calls may differ between the ranks."""
    results = worlds.run(2, together, kind, {})
    np.testing.assert_allclose(results[0][0], expected_of_two(kind), rtol=1e-9, atol=1e-10)
    np.testing.assert_array_equal(results[0][0], results[1][0])
    assert results[0][1] != results[1][1]


@pytest.mark.parametrize("size", [1, 3, 4])
def test_any_number_of_ranks(worlds, size):
    results = worlds.run(size, together, "SGD", {})
    for parameters, _ in results:
        np.testing.assert_array_equal(parameters, results[0][0])

    def one_step_by_hand():
        model = make_model()
        optimizer = make_optimizer("SGD", model)
        starts = [parameter.detach().clone() for parameter in model.parameters()]
        one_step(optimizer, model, hvd.rank(), 0)
        wanted = [
            start + hvd.allreduce(parameter.detach() - start, op=hvd.Adasum)
            for parameter, start in zip(model.parameters(), starts, strict=True)
        ]
        model = make_model()
        optimizer = hvd.DistributedOptimizer(make_optimizer("SGD", model), op=hvd.Adasum)
        one_step(optimizer, model, hvd.rank(), 0)
        for parameter, value in zip(model.parameters(), wanted, strict=True):
            torch.testing.assert_close(parameter.detach(), value, rtol=1e-12, atol=1e-12)

    worlds.run(size, one_step_by_hand)


def test_compression(worlds):
    results = worlds.run(2, together, "SGD", {"compression": hvd.Compression.bf16})
    np.testing.assert_allclose(results[0][0], expected_of_two("SGD"), rtol=0.1, atol=0.02)
    np.testing.assert_array_equal(results[0][0], results[1][0])


def test_an_optimizer_that_puts_new_memory_under_its_parameters(worlds):
    """As older ones of users do: `parameter.data = parameter.data - ...`."""

    def body():
        class Assigning(torch.optim.SGD):
            @torch.no_grad()
            def step(self, closure=None):
                for parameter in self.param_groups[0]["params"]:
                    parameter.data = parameter.data - self.param_groups[0]["lr"] * parameter.grad

        model = torch.nn.Linear(2, 1, bias=False).double()
        torch.nn.init.zeros_(model.weight)
        optimizer = hvd.DistributedOptimizer(Assigning(model.parameters(), lr=1.0), op=hvd.Adasum)
        # The ranks' steps have nothing in common, so that their Adasum is their sum.
        model(torch.eye(2, dtype=torch.float64)[hvd.rank() :][:1]).backward()
        optimizer.step()
        assert model.weight.tolist() == [[-1, -1]]

    worlds.run(2, body)


def test_adasum_optimizer_has_the_interface_of_the_wrapped_one(worlds):
    """The rest of the interface: Horovod's assertion, class name, passes, clipping, frozen and late parameters."""

    def body():
        model = make_model()
        late = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
        model[0].bias.requires_grad_(False)
        plain = make_optimizer("SGD", model)
        optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), op=hvd.Adasum, backward_passes_per_step=2)
        assert type(optimizer).__name__ == "SGD" and isinstance(optimizer, torch.optim.SGD)
        assert optimizer.param_groups is plain.param_groups
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        optimizer.add_param_group({"params": [late], "lr": 1.0})
        try:
            with optimizer.skip_synchronize():
                pass
        except AssertionError as error:
            assert "not supported when using Adasum" in str(error)
        else:
            raise RuntimeError("skip_synchronize went through")
        optimizer.set_backward_passes_per_step(3)
        frozen = model[0].bias.detach().clone()
        for _ in range(3):
            (loss_of(model, hvd.rank(), 0) + (late * (hvd.rank() + 1)).sum()).backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=False)
        assert torch.equal(model[0].bias.detach(), frozen)
        # Gradients 3 and 6 in one direction: parallel steps are averaged.
        torch.testing.assert_close(late.detach(), torch.full((2,), 1 - 4.5, dtype=torch.float64))
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        return flat(model)

    results = worlds.run(2, body)
    np.testing.assert_array_equal(results[0], results[1])


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscale_first", [False, True])
def test_rank_whose_scaled_gradients_overflow_adds_no_change_to_the_step(worlds, fused, unscale_first):
    """A gradient scaler skips the step of that rank only; the others must not wait for it, nor get its next one."""

    def body(fused, unscale_first):
        weight = torch.nn.Parameter(torch.zeros(2))
        plain = torch.optim.SGD([weight], lr=1.0, fused=fused)
        optimizer = hvd.DistributedOptimizer(plain, op=hvd.Adasum)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        direction = torch.eye(2)[hvd.rank()]
        weights = []
        for step in range(3):
            optimizer.zero_grad()
            overflows = step == 1 and hvd.rank() == 1
            scaler.scale((weight * direction).sum() * (float("inf") if overflows else 1.0)).backward()
            if unscale_first:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            weights.append(weight.tolist())
        assert scaler.get_scale() == (512.0 if hvd.rank() == 1 else 1024.0)
        return weights

    # Steps at right angles are added up.
    assert worlds.run(2, body, fused, unscale_first) == [[[-1.0, -1.0], [-2.0, -1.0], [-3.0, -2.0]]] * 2


def test_a_process_set(worlds):
    """Members put their steps together; the rank outside steps alone."""

    def body():
        pair = hvd.add_process_set([0, 2])
        weight = torch.nn.Parameter(torch.zeros(2))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), op=hvd.Adasum, process_set=pair)
        weight.grad = torch.tensor([1.0, 0.0]) if hvd.rank() == 0 else torch.tensor([0.0, 1.0])
        optimizer.step()
        hvd.barrier()
        hvd.remove_process_set(pair)
        return weight.tolist()

    # Steps at right angles are added up.
    assert worlds.run(3, body) == [[-1.0, -1.0], [0.0, -1.0], [-1.0, -1.0]]

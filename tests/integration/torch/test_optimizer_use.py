"""DistributedOptimizer: the ways to use it."""

from __future__ import annotations

import copy
import pickle
import warnings

import numpy as np
import pytest
import torch
from small_trainings import flat, make_data, make_model, make_optimizer

import farandole.torch as hvd


def test_clipping(worlds):
    """Between synchronize() and a step inside skip_synchronize(), gradients can be changed."""

    def body():
        model = torch.nn.Linear(2, 1, bias=False)
        with torch.no_grad():
            model.weight.zero_()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
        for _ in range(2):
            optimizer.zero_grad()
            (model(torch.tensor([[3.0, 4.0]])) * (hvd.rank() + 1)).sum().backward()
            optimizer.synchronize()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            assert abs(float(norm) - 7.5) < 1e-5
            with optimizer.skip_synchronize():
                optimizer.step()
        np.testing.assert_allclose(model.weight.detach().numpy(), [[-1.2, -1.6]], rtol=1e-5)

    worlds.run(2, body)


def test_closure(worlds):
    """The gradients of every call of the closure are reduced: LBFGS calls it several times."""

    def body():
        model = make_model()
        inputs, targets = make_data()
        share = slice(hvd.rank(), None, hvd.size())
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())

        def closure():
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs[share]), targets[share])
            loss.backward()
            return hvd.allreduce(loss.detach(), name="loss")

        for _ in range(3):
            loss = optimizer.step(closure)
        return flat(model), float(loss)

    results = worlds.run(2, body)
    np.testing.assert_array_equal(results[0][0], results[1][0])
    model = make_model()
    inputs, targets = make_data()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5)

    def closure():
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    np.testing.assert_allclose(results[0][0], flat(model), rtol=1e-3, atol=1e-4)


def test_gradients_lie_in_the_arena(worlds):
    """In reverse order of registration, aligned, each in its own storage; and they stay there."""

    def body():
        model = make_model()
        optimizer = hvd.DistributedOptimizer(make_optimizer(model), model.named_parameters())
        seen = []
        for set_to_none in (True, False, True):
            optimizer.zero_grad(set_to_none=set_to_none)
            model(torch.ones(1, 6)).sum().backward()
            optimizer.step()
            seen.append([parameter.grad.data_ptr() for parameter in model.parameters()])
        assert seen[0] == seen[1] == seen[2]
        assert all(address % 64 == 0 for address in seen[0])
        assert seen[0] == sorted(seen[0], reverse=True)
        for parameter in model.parameters():
            assert parameter.grad.untyped_storage().nbytes() == parameter.numel() * 4

    worlds.run(2, body)


def test_gradients_and_parameters_may_get_other_memory(worlds):
    """Between two steps: by assignments to `.data`, by conversions of the model, and where a parameter grows."""

    def body(groups, set_to_none):
        model = torch.nn.Linear(2, 1, bias=False)
        grown = torch.nn.Parameter(torch.ones(2))
        named = [("weight", model.weight), ("grown", grown)]
        optimizer = torch.optim.SGD([model.weight, grown], lr=1.0)
        optimizer = hvd.DistributedOptimizer(optimizer, named, groups=groups)

        def step():
            torch.nn.init.zeros_(model.weight)
            optimizer.zero_grad(set_to_none)
            loss = model(torch.ones(1, 2, dtype=model.weight.dtype)).sum() + grown.sum()
            (loss * (hvd.rank() + 1)).backward()
            optimizer.step()
            assert model.weight.tolist() == [[-1.5, -1.5]]
            assert grown.grad.tolist() == [1.5] * len(grown)

        step()
        step()
        model.weight.grad.data = model.weight.grad.data / 2
        step()
        model.half()
        model.float()
        step()
        model.double()
        step()
        grown.grad, grown.data = None, torch.ones(3)
        step()
        step()

    for groups in (None, 1):
        for set_to_none in (True, False):
            worlds.run(2, body, groups, set_to_none)


ALIASES = {
    "data": lambda gradient: gradient.data,
    "detached": lambda gradient: gradient.detach(),
    "row": lambda gradient: gradient[0],
    "flat": lambda gradient: gradient.view(-1),
    "both": lambda gradient: (gradient, gradient.data)[1],
}


@pytest.mark.parametrize("groups", [None, 1])
@pytest.mark.parametrize("alias", ALIASES)
def test_an_alias_of_a_kept_gradient_stays_as_it_is(worlds, alias, groups):
    """Another tensor in the same memory, as `clip_grad` functions and loggers have it."""

    def body(alias, groups):
        model = torch.nn.Linear(2, 2, bias=False)
        more = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([*model.parameters(), more], lr=1.0)
        optimizer = hvd.DistributedOptimizer(optimizer, groups=groups)
        kept = []
        for step in range(5):
            (model(torch.ones(1, 2)).sum() + more.sum()).mul(hvd.rank() + step).backward()
            optimizer.step()
            assert more.grad.tolist() == [step + 0.5] * 2
            kept.append(ALIASES[alias](model.weight.grad))
            if alias == "both":
                kept.append(model.weight.grad)
            optimizer.zero_grad()
        wanted = [step + 0.5 for step in range(5) for _ in range(2 if alias == "both" else 1)]
        assert [aliased.flatten()[0].item() for aliased in kept] == wanted
        # Once nobody has an alias any more, the gradient lies in the arena again.
        kept.clear()
        places = []
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            places.append(model.weight.grad.data_ptr())
            optimizer.zero_grad()
        assert len(set(places[1:])) == 1

    worlds.run(2, body, alias, groups)


def test_a_forked_child_writes_into_gradients_of_its_own(worlds):
    def body():
        import os

        model = torch.nn.Linear(2, 1, bias=False)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        child = os.fork()
        if child == 0:
            before = model.weight.grad.tolist()
            model.weight.grad.fill_(7)
            os._exit(3 if before == [[1.0, 1.0]] and model.weight.grad.tolist() == [[7.0, 7.0]] else 4)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        assert model.weight.grad.tolist() == [[1.0, 1.0]]
        # The other ranks still read and write this rank's memory.
        optimizer.zero_grad()
        (model(torch.ones(1, 2)).sum() * (hvd.rank() + 1)).backward()
        optimizer.step()
        assert model.weight.grad.tolist() == [[1.5, 1.5]]

    worlds.run(2, body)


def test_a_gradient_that_is_kept_stays_as_it_is(worlds):
    """As without an optimizer around: after `zero_grad()`, the next gradient is another tensor."""

    def body(passes):
        model = torch.nn.Linear(2, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer = hvd.DistributedOptimizer(optimizer, backward_passes_per_step=passes)
        kept = []
        for step in range(4):
            for _ in range(passes):
                (model(torch.ones(1, 2)) * (hvd.rank() + step)).sum().backward()
            optimizer.step()
            kept.append(model.weight.grad)
            optimizer.zero_grad()
        model.weight.requires_grad_(False)
        assert [gradient[0].tolist() for gradient in kept] == [[passes * (step + 0.5)] * 2 for step in range(4)]

    for passes in (1, 2):
        worlds.run(2, body, passes)


def test_wrapper_is_the_users_optimizer(worlds):
    """Class name, isinstance, shared groups, schedulers, state dicts, hooks."""

    def body():

        class Mine(torch.optim.SGD):
            def __init__(self, parameters, flavour):
                super().__init__(parameters, lr=0.1, momentum=0.9)
                self.flavour = flavour

        model = make_model()
        original = Mine(model.parameters(), "sweet")
        early = torch.optim.lr_scheduler.StepLR(original, step_size=1, gamma=0.5)
        optimizer = hvd.DistributedOptimizer(original, model.named_parameters())
        assert type(optimizer).__name__ == "Mine" and isinstance(optimizer, Mine) and optimizer.flavour == "sweet"
        assert optimizer.param_groups is original.param_groups
        assert set(optimizer._parameter_names.values()) == {name for name, _ in model.named_parameters()}
        late = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1)
        calls = []
        optimizer.register_step_pre_hook(lambda *_: calls.append("pre"))
        optimizer.register_step_post_hook(lambda *_: calls.append("post"))
        model(torch.ones(1, 6) * hvd.rank()).sum().backward()
        optimizer.step()
        assert calls == ["pre", "post"]
        late.step()
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # PyTorch's, that no optimizer step came before the scheduler's.
            early.step()
        # Each multiplies what it finds in the groups that all share.
        assert abs(optimizer.param_groups[0]["lr"] - 0.1 * 0.1 * 0.5) < 1e-12
        state = pickle.loads(pickle.dumps(copy.deepcopy(optimizer.state_dict())))
        other = make_model()
        restored = hvd.DistributedOptimizer(Mine(other.parameters(), "sour"), other.named_parameters())
        restored.load_state_dict(state)
        assert restored.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
        for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
            assert torch.equal(optimizer.state[ours]["momentum_buffer"], restored.state[theirs]["momentum_buffer"])
        calls.clear()
        model(torch.ones(1, 6)).sum().backward()
        optimizer.step()
        assert calls == ["pre", "post"]

    worlds.run(2, body)


@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum], ids=["average", "adasum"])
def test_scheduler_of_the_original_optimizer_keeps_its_effect_when_a_state_dict_is_loaded(worlds, op):
    """A script that resumes loads the optimizer on rank 0 and broadcasts; the rates must then fall on all ranks."""

    def body(op):
        model = make_model()
        optimizer = make_optimizer(model)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=op)
        model(torch.ones(1, 6)).sum().backward()
        optimizer.step()
        group, state = optimizer.param_groups[0], optimizer.state
        rate = group["lr"]
        if hvd.rank() == 0:
            optimizer.load_state_dict(optimizer.state_dict())
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        assert optimizer.param_groups[0] is group and optimizer.state is state
        scheduler.step()
        assert optimizer.param_groups[0]["lr"] == scheduler.get_last_lr()[0] == 0.5 * rate

    worlds.run(2, body, op)


def test_unnamed_parameters_and_two_optimizers(worlds):
    """Without names, parameters match by their position; a second optimizer then needs other names."""

    def body():
        model, other = make_model(), make_model(1)
        first = hvd.DistributedOptimizer(make_optimizer(model))
        second = hvd.DistributedOptimizer(
            make_optimizer(other), [(f"other.{name}", parameter) for name, parameter in other.named_parameters()]
        )
        x = torch.ones(2, 6) * (hvd.rank() + 1)
        (model(x).sum() + other(x).sum()).backward()
        first.step()
        second.step()
        return flat(model), flat(other)

    results = worlds.run(2, body)
    np.testing.assert_array_equal(results[0], results[1])


def test_double_backward_does_not_leak_into_the_bucket(worlds):
    """create_graph=True gives gradients that require gradients; what is reduced does not."""

    def body():
        model = make_model()
        optimizer = hvd.DistributedOptimizer(make_optimizer(model), model.named_parameters())
        for _ in range(2):
            optimizer.zero_grad()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # PyTorch warns of the reference cycle that this makes.
                model(torch.ones(1, 6)).sum().backward(create_graph=True)
            optimizer.step()
        assert not any(parameter.grad.requires_grad for parameter in model.parameters())

    worlds.run(2, body)


@pytest.mark.parametrize("sparse", [False, True])
def test_gradients_that_are_kept_in_a_loop_of_steps(worlds, sparse):
    """They stay as they are, also beside others that have no view."""

    def body(sparse):
        rows, layer = torch.nn.Embedding(10, 3, sparse=sparse), torch.nn.Linear(3, 2)
        model = torch.nn.ModuleList([rows, layer])
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), model.named_parameters())
        dataset = torch.utils.data.TensorDataset(torch.arange(10))
        loader = hvd.elastic.ElasticLoader(dataset, global_batch_size=2)
        kept = []
        for (numbers,) in hvd.elastic.steps(loader, model=model, optimizer=optimizer):
            optimizer.zero_grad()
            (layer(rows(numbers)).sum() * len(kept)).backward()
            optimizer.step()
            kept.append(layer.bias.grad)
        assert [gradient.tolist() for gradient in kept] == [[float(step)] * 2 for step in range(5)]

    worlds.run(2, body, sparse)

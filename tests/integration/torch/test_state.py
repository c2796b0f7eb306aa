"""Giving all workers the same optimizer and state."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import torch
from kinds_of_state import check_same, torch_kinds

import farandole.torch as hvd

# Every optimizer of torch 2.13, with options that make it keep all the state it can.
OPTIMIZERS = {
    "ASGD": {"lr": 0.1, "t0": 1},
    "Adadelta": {"lr": 0.1},
    "Adafactor": {"lr": 0.01},
    "Adagrad": {"lr": 0.01, "initial_accumulator_value": 0.1},
    "Adam": {"lr": 0.01, "betas": (0.8, 0.9), "amsgrad": True},
    "AdamW": {"lr": 0.01},
    "Adamax": {"lr": 0.01},
    "LBFGS": {"lr": 0.1, "max_iter": 3},
    "Muon": {"lr": 0.01},
    "NAdam": {"lr": 0.01},
    "RAdam": {"lr": 0.01},
    "RMSprop": {"lr": 0.01, "centered": True, "momentum": 0.5},
    "Rprop": {"lr": 0.01},
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    "SparseAdam": {"lr": 0.01},
}
VARIANTS = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "fused": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "maximize": True, "foreach": True}),
    ("Adam", {"lr": 0.01, "fused": True, "weight_decay": 0.1}),
    ("AdamW", {"lr": 0.01, "foreach": True, "maximize": True}),
    ("Adam", {"lr": torch.tensor(0.01)}),
    ("Adagrad", {"lr": 0.1, "fused": True, "lr_decay": 0.1}),
    ("LBFGS", {"lr": 0.1, "max_iter": 3, "line_search_fn": "strong_wolfe"}),
    ("NAdam", {"lr": 0.01, "decoupled_weight_decay": True, "weight_decay": 0.1}),
    ("RMSprop", {"lr": 0.01}),
]
CASES = [*OPTIMIZERS.items(), *VARIANTS]
CASE_IDS = [f"{name}-{','.join(options)}" for name, options in CASES]


def test_every_optimizer_is_here():
    """One that a new release brings has to be tried."""
    kinds = {
        name
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
    }
    assert kinds <= set(OPTIMIZERS)


def _made(name, options, seed=None, faster=None):
    """Return a model, an optimizer of it, and what makes one step."""
    torch.manual_seed(hvd.rank() if seed is None else seed)
    sparse = name == "SparseAdam"
    model = torch.nn.Embedding(4, 2, sparse=True) if sparse else torch.nn.Linear(3, 2, bias=name != "Muon")
    options = dict(options)
    options["lr"] = options["lr"] * (hvd.rank() + 1 if faster is None else faster)
    optimizer = getattr(torch.optim, name)(list(model.parameters()), **options)

    def step(stepped=None):
        def closure():
            optimizer.zero_grad()
            output = model(torch.tensor([1, 3])) if sparse else model(torch.tensor([[1.0, -2.0, 0.5]]))
            loss = (output - 1).square().sum()
            loss.backward()
            return loss

        return (stepped or optimizer).step(closure)

    return model, optimizer, step


def _numbers(value):
    """Return a state dict with tensors as lists, to compare."""
    if isinstance(value, torch.Tensor):
        return ("tensor", str(value.dtype), value.tolist())
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_numbers(item) for item in value)
    return (type(value).__name__, value)


@pytest.mark.parametrize(("name", "options"), CASES, ids=CASE_IDS)
def test_broadcast_optimizer_state(worlds, name, options):
    """State and options of the root, with their Python types; the objects that schedulers hold stay the same ones."""

    def body(name, options):
        for root, steps in ((0, 2), (1, 1)):
            model, optimizer, step = _made(name, options)
            for _ in range(steps):
                step()
            before = [parameter.detach().clone() for parameter in model.parameters()]
            wanted = _numbers(optimizer.state_dict()) if hvd.rank() == root else None
            groups, group, state = optimizer.param_groups, optimizer.param_groups[0], optimizer.state
            hvd.broadcast_optimizer_state(optimizer, root_rank=root)
            assert optimizer.param_groups is groups and groups[0] is group and optimizer.state is state
            for ours, was in zip(model.parameters(), before, strict=True):
                assert torch.equal(ours, was)
            assert _numbers(optimizer.state_dict()) == hvd.broadcast_object(wanted, root_rank=root)
            hvd.broadcast_parameters(model.state_dict(), root_rank=root)
            step()
            weights = [parameter.detach().tolist() for parameter in model.parameters()]
            everyone = hvd.allgather_object((weights, _numbers(optimizer.state_dict())))
            assert everyone[0] == everyone[1]

    worlds.run(2, body, name, options)


@pytest.mark.parametrize(("name", "options"), CASES, ids=CASE_IDS)
@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "wrapped"])
def test_the_first_state(worlds, name, options, wrapped):
    """Before any step there is state for everybody, of no effect: training goes on as without it, bit by bit."""

    def body(name, options, wrapped):
        model, optimizer, step = _made(name, options)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        distributed = hvd.DistributedOptimizer(optimizer, model.named_parameters()) if wrapped else optimizer
        hvd.broadcast_optimizer_state(distributed, root_rank=0, model=model)
        for ours, was in zip(model.parameters(), before, strict=True):
            assert torch.equal(ours, was)
            # Adagrad has its state from its birth.
            assert name == "Adagrad" or not ours.grad.to_dense().any()
        has_state = name != "SGD" or "momentum" in options
        assert len(distributed.state_dict()["state"]) == (len(before) if has_state and name != "LBFGS" else has_state)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        fresh_model, _, fresh_step = _made(name, options, seed=0, faster=1)
        for _ in range(3):
            step(distributed)
            fresh_step()
        for ours, fresh in zip(model.parameters(), fresh_model.parameters(), strict=True):
            assert torch.equal(ours, fresh)

    worlds.run(2, body, name, options, wrapped)


def test_an_optimizer_of_somebody_elses_gets_no_state_made_up(worlds):
    def body():
        class Odd(torch.optim.SGD):
            def step(self, closure=None):
                for group in self.param_groups:
                    for parameter in group["params"]:
                        state = self.state[parameter]
                        state["ticks"] = state.get("ticks", 40) + 1
                        state["wide"] = torch.full_like(parameter, state["ticks"], dtype=torch.float64)
                return super().step(closure)

        class Same(torch.optim.Adam):
            pass

        model = torch.nn.Linear(2, 1)
        optimizer = Odd(model.parameters(), lr=0.1 * (hvd.rank() + 1))
        hvd.broadcast_optimizer_state(optimizer, root_rank=1)
        assert not any(optimizer.state.values()) and optimizer.param_groups[0]["lr"] == 0.2
        # What it has made itself travels, also in a type that is not the parameter's.
        if hvd.rank() == 1:
            optimizer.step()
        hvd.broadcast_optimizer_state(optimizer, root_rank=1)
        assert optimizer.state[model.weight]["ticks"] == 41
        assert optimizer.state[model.weight]["wide"].dtype == torch.float64
        inherited = hvd.DistributedOptimizer(Same(model.parameters()), model.named_parameters())
        hvd.broadcast_optimizer_state(inherited, root_rank=0)
        assert float(inherited.state[model.weight]["step"]) == 0

    worlds.run(2, body)


def test_state_that_belongs_to_no_parameter(worlds):
    """Optimizers may keep what is common to all parameters under keys of their own."""

    def body():
        class Counting(torch.optim.SGD):
            def step(self, closure=None):
                self.state["steps"] = self.state.get("steps", 0) + 1
                self.state["norms"] = {"last": torch.full((2,), hvd.rank(), dtype=torch.float64)}
                return super().step(closure)

        parameter = torch.nn.Parameter(torch.ones(3))
        optimizer = hvd.DistributedOptimizer(Counting([parameter], lr=0.1, momentum=0.9))
        for _ in range(hvd.rank() + 1):
            parameter.grad = torch.ones(3)
            with optimizer.skip_synchronize():
                optimizer.step()
        hvd.broadcast_optimizer_state(optimizer, root_rank=1)
        assert optimizer.state["steps"] == 2
        assert optimizer.state["norms"]["last"].tolist() == [1, 1]
        assert optimizer.state["norms"]["last"].dtype == torch.float64

    worlds.run(2, body)


def test_parameters_without_gradients_have_no_state(worlds):
    """A parameter of whole numbers and a frozen one are passed over."""

    def body():
        whole = torch.nn.Parameter(torch.tensor([1, 3], dtype=torch.int32), requires_grad=False)
        frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
        trained = torch.nn.Parameter(torch.ones(4))
        optimizer = torch.optim.SGD([whole, frozen, trained], lr=0.001, weight_decay=1e-6, momentum=0.9, nesterov=True)
        named = zip(("whole", "frozen", "trained"), (whole, frozen, trained), strict=True)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=named)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        assert whole.grad is None and frozen.grad is None
        assert torch.equal(hvd.broadcast(trained.grad, root_rank=0), trained.grad)
        assert list(optimizer.state_dict()["state"]) == [2]

    worlds.run(2, body)


def test_sparse_gradients_stay_sparse(worlds):
    """`model` says where; momentum of a sparse gradient is sparse itself and travels."""

    def body():
        model = torch.nn.ModuleDict({"words": torch.nn.Embedding(4, 2, sparse=True), "out": torch.nn.Linear(2, 1)})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        for _ in range(2):
            hvd.broadcast_optimizer_state(optimizer, root_rank=0, model=model)
            model["out"](model["words"](torch.tensor([hvd.rank()]))).sum().backward()
            assert model["words"].weight.grad.is_sparse
            optimizer.step()
            assert model["words"].weight.grad.is_sparse
            optimizer.zero_grad()
        return [parameter.detach().numpy() for parameter in model.parameters()]

    results = worlds.run(2, body)
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("difference", "message"),
    [
        ("kind", "rank 0 has SGD with 1 group, and rank 1 has Adam with 1 group"),
        ("groups", "rank 0 has SGD with 1 group, and rank 1 has SGD with 2 groups"),
        ("parameters", "rank 0 has 2 parameters in group 0, and rank 1 has 1 parameter in"),
        ("shapes", "rank 0 has shape [1, 2] of parameter 0 in group 0, and rank 1 has shape [1, 3]"),
    ],
)
def test_different_optimizers_are_an_error_on_all_ranks(worlds, difference, message):
    def body(difference, message):
        other = difference if hvd.rank() == 1 else ""
        model = torch.nn.Linear(3 if other == "shapes" else 2, 1)
        parameters = [model.weight, model.bias][: 1 if other == "parameters" else 2]
        groups = [{"params": [parameter]} for parameter in parameters] if other == "groups" else parameters
        kind = torch.optim.Adam if other == "kind" else torch.optim.SGD
        optimizer = kind(groups, lr=0.1 * (hvd.rank() + 1))
        for root in (0, 1):
            with pytest.raises(ValueError) as failure:
                hvd.broadcast_optimizer_state(optimizer, root_rank=root)
            assert message in str(failure.value) and "on all ranks" in str(failure.value)
        assert not optimizer.state and optimizer.param_groups[0]["lr"] == 0.1 * (hvd.rank() + 1)
        assert model.weight.grad is None

    worlds.run(2, body, difference, message)


def test_plain_and_distributed_optimizers_of_one_kind_are_alike(worlds):
    def body():
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (hvd.rank() + 1), momentum=0.9)
        if hvd.rank() == 1:
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        assert optimizer.param_groups[0]["lr"] == 0.1

    worlds.run(2, body)


def test_only_one_rank_has_state(worlds):
    """A worker that restored a checkpoint, and one that did not."""

    def body():
        _, optimizer, step = _made("Adam", OPTIMIZERS["Adam"])
        for _ in range(3 if hvd.rank() == 0 else 0):
            step()
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        return _numbers(optimizer.state_dict())

    first, second = worlds.run(2, body)
    assert first == second and len(first["state"]) == 2


def test_state_of_a_distributed_optimizer(worlds):
    def body():
        model, plain, step = _made("SGD", OPTIMIZERS["SGD"])
        step()
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


def _optimizer_of_all_kinds(mine):
    parameter = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    optimizer.state[parameter] = torch_kinds() if mine else {"another": 1}
    optimizer.param_groups[0]["history"] = collections.deque([1.0], maxlen=2) if mine else None
    return parameter, optimizer


def test_state_arrives_as_it_was_sent(worlds):
    """Types, containers and values, at any depth; PyTorch's own loader casts to the parameter's type."""

    def body():
        for root in (0, 1):
            parameter, optimizer = _optimizer_of_all_kinds(hvd.rank() == root)
            hvd.broadcast_optimizer_state(optimizer, root_rank=root)
            check_same(optimizer.state[parameter], torch_kinds())
            check_same(optimizer.param_groups[0]["history"], collections.deque([1.0], maxlen=2))
            check_same(hvd.broadcast_object(torch_kinds() if hvd.rank() == root else None, root), torch_kinds())
            assert all(map(_is_whole, hvd.allgather_object(torch_kinds())))

    worlds.run(2, body)


def _is_whole(value):
    check_same(value, torch_kinds())
    return True


@pytest.mark.parametrize("at_once", [1 << 30, 0], ids=["at once", "in parts"])
def test_newcomers_get_the_state_as_it_is(worlds, at_once):
    def body(at_once):
        from farandole.torch.elastic import stream

        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).bfloat16()
        optimizer = torch.optim.Adam(model.parameters())
        with torch.no_grad():
            model[0].weight.fill_(hvd.rank())
        if hvd.rank() == 0:
            for parameter in model.parameters():
                optimizer.state[parameter] = {**torch_kinds(), "step": torch.tensor(3.0)}
            optimizer.param_groups[0]["history"] = collections.deque([torch.tensor(1.0)], maxlen=2)
        sending = stream.begin({"model": model, "optimizer": optimizer}, [0], [1], at_once)
        assert (sending is None) == (at_once > 0)
        if sending is not None:
            while not sending.send_some(1.0):
                sending.take()
            sending.finish()
        for parameter in model.parameters():
            check_same(optimizer.state[parameter], {**torch_kinds(), "step": torch.tensor(3.0)})
        check_same(optimizer.param_groups[0]["history"], collections.deque([torch.tensor(1.0)], maxlen=2))
        assert not model[0].weight.any()

    worlds.run(2, body, at_once)

"""DistributedOptimizer: what it computes, and how it answers wrong use."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
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
    """Return the parameters after one process has trained with all the data."""
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


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("kind", ["sgd", "adam"])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_equals_one_process_with_the_whole_batch(worlds, size, kind, set_to_none):
    wanted = train_alone(kind, steps=8)
    results = worlds.run(size, train_together, kind, {}, {"steps": 8, "set_to_none": set_to_none})
    for result in results:
        np.testing.assert_allclose(result, wanted, rtol=2e-5, atol=2e-6)
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize(
    "arguments",
    [
        {"groups": 2},
        {"groups": 100},
        {"gradient_predivide_factor": 2.0},
        {"gradient_predivide_factor": 2.0, "groups": 2},
    ],
    ids=str,
)
def test_arguments_that_change_only_the_way(worlds, arguments):
    wanted = train_alone()
    for result in worlds.run(2, train_together, "sgd", arguments, {}):
        np.testing.assert_allclose(result, wanted, rtol=2e-5, atol=2e-6)


def test_explicit_groups(worlds):
    def body():
        model = make_model()
        inputs, targets = make_data()
        share = slice(hvd.rank(), None, hvd.size())
        parameters = list(model.parameters())
        optimizer = hvd.DistributedOptimizer(
            make_optimizer(model), model.named_parameters(), groups=[[parameters[0], parameters[3]], [parameters[2]]]
        )
        train(model, optimizer, inputs[share], targets[share])
        return flat(model)

    for result in worlds.run(2, body):
        np.testing.assert_allclose(result, train_alone(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_transports(worlds, transport):
    for result in worlds.run(2, train_together, "sgd", {}, {}, FARANDOLE_TRANSPORT=transport):
        np.testing.assert_allclose(result, train_alone(), rtol=2e-5, atol=2e-6)


def test_an_arena_that_is_full(worlds):
    """Gradients then live in ordinary memory."""

    def body():
        from farandole.core.basics import current

        assert current().engine.allocate(1 << 30) is None
        model = torch.nn.Linear(4096, 1024)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
        model(torch.ones(1, 4096) * (hvd.rank() + 1)).sum().backward()
        optimizer.synchronize()
        assert (model.weight.grad == 1.5).all()
        with optimizer.skip_synchronize():
            optimizer.step()

    worlds.run(2, body, FARANDOLE_ARENA_BYTES=str(16 << 20))


@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_compression(worlds, compression):
    def body(compression):
        model = make_model()
        inputs, targets = make_data()
        share = slice(hvd.rank(), None, hvd.size())
        optimizer = hvd.DistributedOptimizer(
            make_optimizer(model), model.named_parameters(), compression=getattr(hvd.Compression, compression)
        )
        train(model, optimizer, inputs[share], targets[share])
        assert all(parameter.grad.dtype == torch.float32 for parameter in model.parameters())
        return flat(model)

    results = worlds.run(2, body, compression)
    np.testing.assert_allclose(results[0], train_alone(), rtol=5e-2, atol=5e-3)
    np.testing.assert_array_equal(results[0], results[1])


def test_backward_passes_per_step(worlds):
    """Gradients of several passes are summed locally and reduced once."""
    results = worlds.run(2, train_together, "sgd", {"backward_passes_per_step": 3}, {"passes": 3})
    for result in results:
        np.testing.assert_allclose(result, train_alone(), rtol=2e-5, atol=2e-6)

    def reduced_once():
        model = make_model()
        optimizer = hvd.DistributedOptimizer(
            make_optimizer(model), model.named_parameters(), backward_passes_per_step=2
        )
        before = hvd.stats()["operations"]["allreduce"]["requests"]
        for _ in range(2):
            model(torch.ones(1, 6)).sum().backward()
        optimizer.step()
        assert hvd.stats()["operations"]["allreduce"]["requests"] == before + PARAMETERS
        optimizer.set_backward_passes_per_step(1)
        optimizer.zero_grad()
        model(torch.ones(1, 6)).sum().backward()
        optimizer.step()
        assert hvd.stats()["operations"]["allreduce"]["requests"] == before + 2 * PARAMETERS

    worlds.run(2, reduced_once)


def test_fewer_passes_than_promised_still_make_a_step(worlds):
    def body():
        model = torch.nn.Linear(2, 1, bias=False)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), backward_passes_per_step=3
        )
        model(torch.full((1, 2), float(hvd.rank()))).sum().backward()
        optimizer.synchronize()
        assert (model.weight.grad == 0.5).all()
        with optimizer.skip_synchronize():
            optimizer.step()

    worlds.run(2, body)


@pytest.mark.parametrize("groups", [None, 1])
def test_a_parameter_that_one_rank_did_not_use(worlds, groups):
    """It takes part with zeros, so nobody waits for ever; also when no rank used it."""

    def body(groups):
        used, sometimes, never = (torch.nn.Linear(2, 1, bias=False) for _ in range(3))
        named = [("used", used.weight), ("sometimes", sometimes.weight), ("never", never.weight)]
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([parameter for _, parameter in named], lr=1.0), named, groups=groups
        )
        for _ in range(3):
            optimizer.zero_grad()
            x = torch.ones(1, 2)
            loss = used(x).sum() + (sometimes(x).sum() if hvd.rank() == 0 else 0.0)
            loss.backward()
            optimizer.synchronize()
            assert (used.weight.grad == 1.0).all()
            assert (sometimes.weight.grad == 0.5).all()
            assert (never.weight.grad == 0.0).all()
            with optimizer.skip_synchronize():
                optimizer.step()

    worlds.run(2, body, groups)


def test_frozen_parameters_are_left_alone(worlds):
    def body():
        model = make_model()
        model[0].weight.requires_grad_(False)
        optimizer = hvd.DistributedOptimizer(make_optimizer(model), model.named_parameters())
        model[0].bias.requires_grad_(False)
        model(torch.ones(1, 6)).sum().backward()
        optimizer.step()
        assert model[0].weight.grad is None and model[0].bias.grad is None
        assert model[2].weight.grad is not None

    worlds.run(2, body)


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


def test_step_after_synchronize_without_the_context_warns(worlds):
    def body():
        model = torch.nn.Linear(2, 1, bias=False)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), op=hvd.Sum
        )
        model(torch.ones(1, 2)).sum().backward()
        optimizer.synchronize()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            optimizer.step()
        (warning,) = caught
        assert str(warning.message).startswith(
            "optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize()"
        )
        assert (model.weight.grad == 2.0).all()  # Summed once, not twice.

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


def test_wrong_order_of_calls(worlds):
    """Asserts that users of Horovod know; afterwards training goes on."""

    def body():
        model = make_model()
        optimizer = hvd.DistributedOptimizer(make_optimizer(model), model.named_parameters())
        model(torch.ones(1, 6)).sum().backward()
        try:
            optimizer.zero_grad()
        except AssertionError as error:
            assert str(error).startswith(
                "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
                "optimizer.synchronize()."
            )
        else:
            raise RuntimeError("zero_grad went through")
        try:
            model(torch.ones(1, 6)).sum().backward()
        except AssertionError as error:
            assert str(error).startswith(
                "Gradients were computed more than backward_passes_per_step times before call to step(). "
                "Increase backward_passes_per_step"
            )
        else:
            raise RuntimeError("a second backward pass went through")
        optimizer.step()
        optimizer.zero_grad()
        model(torch.ones(1, 6)).sum().backward()
        optimizer.step()

    worlds.run(2, body)


def test_gradients_lie_in_the_arena(worlds):
    """In reverse order of registration, aligned, each in a storage of its own; and they stay there."""

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


def test_it_is_the_users_optimizer(worlds):
    """Class name, isinstance, shared groups, schedulers, state dicts, hooks."""

    def body():
        import copy
        import pickle

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
            warnings.simplefilter("ignore")  # It has not seen the step of the optimizer that it knows.
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


def test_wrong_arguments(worlds):
    def body():
        def refused(words, named=None, parameters=None, **arguments):
            model = make_model()
            try:
                hvd.DistributedOptimizer(
                    make_optimizer(model), named(model) if named else model.named_parameters(), **arguments
                )
            except ValueError as error:
                assert words in str(error), error
            else:
                raise AssertionError(f"{arguments} went through")

        refused("named_parameters should be a sequence of tuples", lambda model: model.parameters())
        refused(
            "Parameter names in named_parameters must be unique",
            lambda model: [("same", parameter) for parameter in model.parameters()],
        )
        refused(
            "named_parameters was specified, but one or more model parameters were not named",
            lambda model: list(model.named_parameters())[:-1],
        )
        refused("gradient_predivide_factor not supported with op != Average", gradient_predivide_factor=2.0, op=hvd.Sum)
        refused("backward_passes_per_step must be > 0", backward_passes_per_step=0)
        refused("groups should be a positive integer or a list of lists", groups=-1)
        refused("groups should be a positive integer or a list of lists", groups=0)
        refused("groups", groups="all")
        refused("groups", groups=[[1, 2]])
        parameter = torch.nn.Parameter(torch.ones(1))
        refused("more than once", groups=[[parameter], [parameter]])
        refused("op is one of", op=9)
        refused("does not exist, or has not been registered", process_set=hvd.ProcessSet([0]))
        model = make_model()
        distributed = hvd.DistributedOptimizer(make_optimizer(model), model.named_parameters())
        try:
            hvd.DistributedOptimizer(distributed, model.named_parameters())
        except ValueError as error:
            assert "already" in str(error)
        else:
            raise AssertionError("an optimizer was wrapped twice")

    worlds.run(2, body)


def test_num_groups_is_deprecated(worlds):
    def body():
        model = make_model()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            hvd.DistributedOptimizer(make_optimizer(model), model.named_parameters(), num_groups=2)
        assert [warning.category for warning in caught] == [DeprecationWarning]

    worlds.run(2, body)


def test_unnamed_parameters_and_two_optimizers(worlds):
    """Without names, parameters match by their place; a second optimizer then needs names of its own."""

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


def test_an_optimizer_that_was_dropped_leaves_its_parameters(worlds):
    """Wrapping the same parameters again reduces them once."""

    def body():
        model = make_model()
        for _ in range(3):
            optimizer = hvd.DistributedOptimizer(make_optimizer(model), model.named_parameters())
        before = hvd.stats()["operations"]["allreduce"]["requests"]
        model(torch.ones(1, 6)).sum().backward()
        optimizer.step()
        assert hvd.stats()["operations"]["allreduce"]["requests"] == before + PARAMETERS

    worlds.run(2, body)


def test_process_set(worlds):
    """Members reduce among themselves; on others the optimizer is local."""

    def body():
        pair = hvd.add_process_set([0, 2])
        model = torch.nn.Linear(1, 1, bias=False)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), process_set=pair
        )
        (model(torch.ones(1, 1)) * hvd.rank()).sum().backward()
        optimizer.step()
        gradient = float(model.weight.grad)
        hvd.barrier()
        hvd.remove_process_set(pair)
        return gradient

    assert worlds.run(3, body) == [1.0, 1.0, 1.0]

    def sum_of_pair():
        pair = hvd.add_process_set([0, 2])
        model = torch.nn.Linear(1, 1, bias=False)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), process_set=pair, op=hvd.Sum
        )
        (model(torch.ones(1, 1)) * (hvd.rank() + 1)).sum().backward()
        optimizer.step()
        hvd.barrier()
        hvd.remove_process_set(pair)
        return float(model.weight.grad)

    assert worlds.run(3, sum_of_pair) == [4.0, 2.0, 4.0]


def test_a_mismatch_fails_the_step_and_no_more(worlds):
    """One rank's model has another shape: an error that names the parameter; the next optimizer works."""

    def body():
        model = torch.nn.Linear(2 + hvd.rank(), 1)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
        model(torch.ones(1, 2 + hvd.rank())).sum().backward()
        try:
            optimizer.step()
        except hvd.HorovodInternalError as error:
            text = str(error)
        else:
            raise AssertionError("different shapes were reduced")
        assert (model.bias.grad == 1.0).all()
        optimizer.zero_grad()
        model = make_model()
        optimizer = hvd.DistributedOptimizer(make_optimizer(model), model.named_parameters())
        model(torch.ones(1, 6)).sum().backward()
        optimizer.step()
        return text

    for text in worlds.run(2, body):
        assert "weight" in text and "[1, 2]" in text and "[1, 3]" in text


def test_after_shutdown_and_init(worlds):
    """The optimizer moves to the new world; gradients of the old one can still be read."""

    def body():
        model = make_model()
        optimizer = hvd.DistributedOptimizer(make_optimizer(model), model.named_parameters())
        model(torch.ones(1, 6) * hvd.rank()).sum().backward()
        optimizer.step()
        gradients = [parameter.grad.clone() for parameter in model.parameters()]
        hvd.shutdown()
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            assert torch.equal(parameter.grad, gradient)
        optimizer.zero_grad(set_to_none=False)
        try:
            optimizer.step()
        except ValueError as error:
            assert "has not been initialized" in str(error)
        else:
            raise AssertionError("a step went through without a world")
        hvd.init()
        for _ in range(2):
            optimizer.zero_grad(set_to_none=False)
            model(torch.ones(1, 6) * hvd.rank()).sum().backward()
            optimizer.step()
        return flat(model)

    results = worlds.run(2, body)
    np.testing.assert_array_equal(results[0], results[1])


def test_shutdown_in_the_middle_of_a_step(worlds):
    """Gradients in flight fail or finish; the next world starts clean."""

    def body():
        model = make_model()
        optimizer = hvd.DistributedOptimizer(make_optimizer(model), model.named_parameters())
        try:
            model(torch.ones(1, 6)).sum().backward()
        except hvd.HorovodInternalError as error:
            assert "shut down" in str(error)  # The other rank was so quick.
        hvd.shutdown()
        hvd.init()
        optimizer.zero_grad()
        model(torch.ones(1, 6)).sum().backward()
        optimizer.step()
        return flat(model)

    results = worlds.run(2, body)
    np.testing.assert_array_equal(results[0], results[1])


def sparse_step(optimizer_kind, words, op=hvd.Average, **arguments):
    """Let an embedding make a step for these words; return the optimizer and the embedding."""
    torch.manual_seed(0)
    model = torch.nn.Embedding(5, 2, sparse=True)
    optimizer = getattr(torch.optim, optimizer_kind)(list(model.parameters()), lr=1.0)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=op, **arguments)
    optimizer.zero_grad()
    model(torch.tensor(words)).sum().backward()
    optimizer.step()
    return optimizer, model


@pytest.mark.parametrize("sparse_as_dense", [False, True])
@pytest.mark.parametrize("groups", [None, 1])
def test_sparse_gradients(worlds, sparse_as_dense, groups):
    """Gathered or made dense for the way; they stay sparse, which SparseAdam insists on."""

    def body(arguments):
        rank = hvd.rank()
        for kind in ("SGD", "SparseAdam"):
            optimizer, model = sparse_step(kind, [rank, 3, 3], **arguments)
            for step in range(3):
                gradient = model.weight.grad
                assert gradient.is_sparse
                wanted = [0.5, 0.5, 0, 2, 0] if step != 1 else [0.5, 0, 0, 0, 0]
                np.testing.assert_array_equal(gradient.to_dense().numpy()[:, 0], wanted)
                optimizer.zero_grad(set_to_none=step != 2)
                # In the second step only the first rank has a gradient.
                if step != 0 or rank == 0:
                    model(torch.tensor([rank, 3, 3] if step else [0])).sum().backward()
                optimizer.step()
            weights = hvd.allgather(model.weight.detach().reshape(1, -1))
            assert torch.equal(weights[0], weights[1])
        _, model = sparse_step("SGD", [rank], op=hvd.Sum, **arguments)
        np.testing.assert_array_equal(model.weight.grad.to_dense().numpy()[:, 0], [1, 1, 0, 0, 0])

    worlds.run(2, body, {"sparse_as_dense": sparse_as_dense, "groups": groups})


def test_sparse_and_dense_gradients_in_one_group(worlds):
    def body():
        torch.manual_seed(0)
        embedding, linear = torch.nn.Embedding(4, 2, sparse=True), torch.nn.Linear(2, 1)
        model = torch.nn.ModuleDict({"embedding": embedding, "linear": linear})
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            model.named_parameters(),
            groups=[list(model.parameters())],
            gradient_predivide_factor=2.0,
        )
        for _ in range(3):
            optimizer.zero_grad()
            linear(embedding(torch.tensor([hvd.rank(), 2]))).sum().backward()
            optimizer.step()
            assert embedding.weight.grad.is_sparse and not linear.weight.grad.is_sparse
            assert (linear.bias.grad == 2.0).all()
        return flat(model)

    results = worlds.run(2, body)
    np.testing.assert_array_equal(results[0], results[1])
    torch.manual_seed(0)
    embedding, linear = torch.nn.Embedding(4, 2), torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD([*embedding.parameters(), *linear.parameters()], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (linear(embedding(torch.tensor([0, 2, 1, 2]))).sum() / 2).backward()
        optimizer.step()
    wanted = np.concatenate([parameter.detach().reshape(-1) for parameter in [embedding.weight, *linear.parameters()]])
    np.testing.assert_allclose(results[0], wanted, rtol=1e-5, atol=1e-6)


def test_sparse_gradients_that_do_not_fit(worlds):
    """An operation that has no sparse form, and a rank that takes the gradient for dense: errors, never a wait."""

    def body():
        try:
            sparse_step("SGD", [0], op=hvd.Max)
        except ValueError as error:
            assert "sparse_as_dense=True" in str(error)
        else:
            raise AssertionError("the maximum of sparse gradients went through")
        model = torch.nn.Embedding(5, 2, sparse=True)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
        if hvd.rank() == 0:
            model(torch.tensor([1])).sum().backward()
        try:
            optimizer.step()
        except hvd.HorovodInternalError as error:
            assert ("sparse_as_dense=True" in str(error)) == (hvd.rank() == 1), error
        else:
            raise AssertionError("a dense gradient met a sparse one")

    worlds.run(2, body)


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

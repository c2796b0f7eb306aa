"""DistributedOptimizer: what it computes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_trainings import PARAMETERS, flat, make_data, make_model, make_optimizer, train, train_alone, train_together

import farandole.torch as hvd


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
        from farandole.worker.core.basics import current

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

    worlds.run(2, reduced_once, FARANDOLE_CHECK_PARAMETERS="0")


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
    """It takes part with zeros, so no rank waits for ever, also if no rank has used it."""

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


@pytest.mark.parametrize("groups", [None, 1])
def test_a_rank_that_used_no_parameter(worlds, groups):
    """It takes part with zeros, from the first step on, as one that had no samples."""

    def body(groups):
        model = torch.nn.Linear(2, 2)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), groups=groups
        )
        for idle_rank in (1, 0, 1):
            optimizer.zero_grad()
            if hvd.rank() != idle_rank:
                model(torch.ones(1, 2)).sum().backward()
            before = model.bias.detach().clone()
            optimizer.step()
            assert (model.bias == before - 0.5).all()

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

"""DistributedOptimizer: how it answers wrong use."""

from __future__ import annotations

import contextlib
import copy
import pickle
import warnings

import cloudpickle
import pytest
import torch
from small_trainings import make_model, make_optimizer

import farandole.torch as hvd


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


@pytest.mark.parametrize("how", ["clip", "clear", "unscale"])
@pytest.mark.parametrize("options", [{}, {"groups": 1}, {"compression": hvd.Compression.fp16}])
def test_gradients_that_change_while_they_are_reduced_are_warned_of(worlds, how, options):
    """Each rank may change them before or after they are reduced, so the ranks' parameters may differ from then on."""

    def change(model):
        if how == "clip":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-6)
        elif how == "clear":
            model.zero_grad(set_to_none=False)
        else:
            model.bias.grad.div_(2.0)

    def body():
        model = torch.nn.Linear(2, 1)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), **options
        )
        # The first step takes another way than the others.
        for changes, synchronizes in (("before", 0), ("", 0), ("before", 0), ("after", 1), ("before", 1)):
            model(torch.ones(1, 2)).sum().backward()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                if changes == "before":
                    change(model)
                if synchronizes:
                    optimizer.synchronize()
                if changes == "after":
                    change(model)
                with optimizer.skip_synchronize() if synchronizes else contextlib.nullcontext():
                    optimizer.step()
            told = [str(warning.message) for warning in caught]
            assert len(told) == (changes == "before"), told
            assert all(each.startswith("gradients were changed while they were being reduced") for each in told)
            assert all(warning.filename.endswith("test_optimizer_misuse.py") for warning in caught)
            model.zero_grad(set_to_none=False)

    worlds.run(2, body)


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


@pytest.mark.parametrize("discards", [False, True])
def test_fewer_passes_than_a_step_has(worlds, discards):
    """They cannot be cleared by mistake; a step uses them, and after synchronize() they may be cleared."""

    def body():
        model = torch.nn.Linear(2, 1, bias=False)
        with torch.no_grad():
            model.weight.zero_()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), backward_passes_per_step=3
        )

        def passes(count):
            for _ in range(count):
                model(torch.full((1, 2), hvd.rank() + 1.0)).sum().backward()

        passes(2)
        with pytest.raises(AssertionError, match=r"optimizer.synchronize\(\)\. The gradients of the backward"):
            optimizer.zero_grad()
        if discards:
            optimizer.synchronize()
        else:
            optimizer.step()
        optimizer.zero_grad()
        passes(3)
        optimizer.step()
        return model.weight.detach().tolist()

    expected = -1.5 * (3 if discards else 5)
    assert worlds.run(2, body) == [[[expected] * 2]] * 2


@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum])
def test_an_optimizer_cannot_be_copied(worlds, op):
    def body():
        model = make_model()
        optimizer = hvd.DistributedOptimizer(make_optimizer(model), model.named_parameters(), op=op)
        for way in (copy.copy, copy.deepcopy, pickle.dumps, cloudpickle.dumps):
            with pytest.raises(ValueError, match=r"cannot be copied or pickled, .* Copy or save its state_dict\(\)\."):
                way(optimizer)
        twin = copy.deepcopy(model)
        again = hvd.DistributedOptimizer(make_optimizer(twin), twin.named_parameters(), op=op)
        again.load_state_dict(copy.deepcopy(optimizer.state_dict()))

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
        refused("named_parameters should be a sequence of tuples", lambda model: model)
        refused("process_set is [0], but should be a ProcessSet", process_set=[0])
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
        refused("op must be one of", op=9)
        refused("compression must be one of hvd.Compression", compression="fp16")
        refused("does not exist, or has not been registered", process_set=hvd.ProcessSet([0]))
        model = make_model()
        distributed = hvd.DistributedOptimizer(make_optimizer(model), model.named_parameters())
        try:
            hvd.DistributedOptimizer(distributed, model.named_parameters())
        except ValueError as error:
            assert "already" in str(error)
        else:
            raise AssertionError("an optimizer was wrapped twice")
        for call in (hvd.DistributedOptimizer, hvd.broadcast_optimizer_state):
            try:
                call(model, *[0] * (call is hvd.broadcast_optimizer_state))
            except ValueError as error:
                assert f"{call.__name__} takes an optimizer, but got Sequential" in str(error), error
            else:
                raise AssertionError("a model was taken for an optimizer")
        try:
            hvd.allreduce(torch.ones(2, device="meta"))
        except ValueError as error:
            assert "device meta has no elements" in str(error)
        else:
            raise AssertionError("a tensor without elements was reduced")

    worlds.run(2, body)


def test_plain_optimizer_in_a_loop_of_steps_is_refused_in_a_fixed_world(worlds):
    """Without an error, each worker would train its own model."""

    def body():
        model = torch.nn.Linear(1, 1)
        loader = hvd.elastic.ElasticLoader([torch.ones(1)] * 4, global_batch_size=2)
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        try:
            hvd.elastic.steps(loader, epochs=1, model=model, optimizer=plain)
        except ValueError as error:
            assert "optimizer is a plain SGD; pass hvd.DistributedOptimizer(optimizer, ...)" in str(error)
        else:
            raise AssertionError("each worker would train a model of its own")

    worlds.run(2, body)


def test_num_groups_is_deprecated(worlds):
    def body():
        model = make_model()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            hvd.DistributedOptimizer(make_optimizer(model), model.named_parameters(), num_groups=2)
        assert [warning.category for warning in caught] == [DeprecationWarning]

    worlds.run(2, body)

"""DistributedOptimizer: after failed steps, in worlds that end, and when it is dropped."""

from __future__ import annotations

import copy
import gc

import numpy as np
import pytest
import torch
from small_trainings import PARAMETERS, flat, make_model, make_optimizer

import farandole.torch as hvd


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

    worlds.run(2, body, FARANDOLE_CHECK_PARAMETERS="0")


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("way", ["deleted", "replaced", "scheduled", "another model"])
def test_an_optimizer_takes_over_the_names_of_one_whose_step_was_not_taken(worlds, way, steps):
    """Its gradients are its own from the first backward pass on. One rank may not have had all gradients."""

    def body(way, steps):
        model = make_model()

        def made():
            return hvd.DistributedOptimizer(make_optimizer(model), model.named_parameters())

        def backward(inputs, *, whole=True):
            (model if whole else model[0])(inputs * (hvd.rank() + 1.0)).sum().backward()

        optimizer = made()
        for _ in range(steps):
            optimizer.zero_grad()
            backward(torch.ones(1, 6))
            optimizer.step()
        model.zero_grad()
        backward(torch.ones(1, 6), whole=hvd.rank() == 0)
        if way == "scheduled":  # The scheduler and the optimizer are a cycle of references.
            torch.optim.lr_scheduler.StepLR(optimizer, 1)
        if way == "deleted":
            del optimizer
        if way == "another model":
            model = make_model()
        optimizer = made()
        for number in (3.0, 5.0):
            model.zero_grad()
            backward(torch.full((1, 6), number))
            alone = copy.deepcopy(model)
            alone.zero_grad()
            sum(alone(torch.full((1, 6), number * rank)).sum() / 2 for rank in (1, 2)).backward()
            optimizer.step()
            for parameter, wanted in zip(model.parameters(), alone.parameters(), strict=True):
                np.testing.assert_allclose(parameter.grad.numpy(), wanted.grad.numpy(), rtol=1e-5)

    worlds.run(2, body, way, steps)


def test_a_replaced_optimizer_reduces_nothing_more(worlds):
    """Whoever still has it gets an error; and what was in flight does not come after gradients are cleared."""

    def body():
        model = torch.nn.Linear(2, 1, bias=False)

        def made():
            return hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), model.named_parameters())

        def backward():
            (model(torch.ones(1, 2)) * (hvd.rank() + 1.0)).sum().backward()

        first = made()
        for steps_are_taken in (True, True, False):
            first.zero_grad()
            backward()
            if steps_are_taken:
                first.step()
        second = made()
        for _ in range(3):
            second.zero_grad(set_to_none=False)
            backward()
            second.step()
            assert model.weight.grad.tolist() == [[1.5, 1.5]]
        backward()
        with pytest.raises(ValueError, match="a later DistributedOptimizer reduces the gradients of parameters"):
            first.step()
        second.step()
        first = made()
        first.zero_grad()
        backward()
        first.step()
        assert model.weight.grad.tolist() == [[1.5, 1.5]]

    worlds.run(2, body)


def test_a_step_that_one_rank_has_not_dropped_yet_is_not_mixed_with_the_next_ones(worlds):
    """There, the optimizer is in a cycle of references; the next model has parameters of the same names."""

    def body():
        gc.disable()

        def train(value, steps_are_taken):
            model = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 1, bias=False))
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.fill_(1.0)
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), model.named_parameters())
            part = model[0] if hvd.rank() == 1 and not steps_are_taken else model
            part(torch.full((1, 2), value)).sum().backward()
            if steps_are_taken:
                optimizer.step()
            elif hvd.rank() == 1:
                optimizer.cycle = optimizer
            return model

        train(100.0, False)
        model = train(hvd.rank() + 1.0, True)
        gc.enable()
        return [parameter.grad.unique().tolist() for parameter in model.parameters()]

    assert worlds.run(2, body) == [[[1.5], [3.0]]] * 2


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum])
def test_gradients_of_a_dropped_step_stay_as_they_are(worlds, op, exists):
    """Where they were not in flight, as they are on the other rank."""

    def body(op, exists):
        model = make_model()
        optimizer = hvd.DistributedOptimizer(make_optimizer(model), model.named_parameters())
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, 6)).sum().backward()
            optimizer.step()
        model.zero_grad(set_to_none=False)
        (model if hvd.rank() == 0 else model[0])(torch.ones(1, 6)).sum().backward()
        if exists:
            torch.optim.lr_scheduler.StepLR(optimizer, 1)
        del optimizer
        last = model[2]
        before = last.weight.grad.clone()
        optimizer = hvd.DistributedOptimizer(make_optimizer(model), model.named_parameters(), op=op)
        if hvd.rank() == 1:
            assert before.count_nonzero() == 0 and torch.equal(last.weight.grad, before)
        optimizer.zero_grad()
        model(torch.ones(1, 6)).sum().backward()
        optimizer.step()
        return flat(model)

    results = worlds.run(2, body, op, exists)
    np.testing.assert_array_equal(results[0], results[1])


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

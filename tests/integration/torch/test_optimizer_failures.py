"""DistributedOptimizer: after failed steps, in worlds that end, and when it is dropped."""

from __future__ import annotations

import numpy as np
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

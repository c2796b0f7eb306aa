"""Submit batches: gradients that are ready travel together, and none of them waits for more than the backward pass."""

from __future__ import annotations

import torch

import farandole.torch as hvd

SMALL = 200


def make(shapes, lr=0.0):
    parameters = [torch.nn.Parameter(torch.ones(shape)) for shape in shapes]
    named = [(f"p{index}", parameter) for index, parameter in enumerate(parameters)]
    return parameters, hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=lr), named)


def backward(parameters, factor):
    sum((parameter * factor).sum() for parameter in parameters).backward()


def test_small_gradients_need_few_agreements(worlds):
    def body():
        parameters, optimizer = make([(16,)] * SMALL)
        for step in range(3):
            before = hvd.stats()
            backward(parameters, hvd.rank() + step)
            optimizer.step()
            after = hvd.stats()
            assert all((parameter.grad == 0.5 + step).all() for parameter in parameters)
            optimizer.zero_grad()
        requests = [stats["operations"]["allreduce"]["requests"] for stats in (before, after)]
        return requests[1] - requests[0], after["rounds"] - before["rounds"]

    for requests, rounds in worlds.run(2, body):
        assert requests == SMALL
        assert rounds <= 4  # One, unless a report is cut in two.


def test_gradients_of_any_size(worlds):
    """Batches end in the middle of the backward pass, too."""

    def body():
        parameters, optimizer = make([(1 << 18,), (3,), (1 << 20,), (0,), (5, 7), (1 << 19,)])
        for step in range(4):
            backward(parameters, hvd.rank() + step)
            optimizer.step()
            assert all((parameter.grad == 0.5 + step).all() for parameter in parameters)
            optimizer.zero_grad()

    worlds.run(2, body)


def test_no_gradient_waits_longer_than_the_backward_pass(worlds):
    """A rank that does something else before its step delays no other rank, also if a branch was not taken."""

    def body():
        parameters, optimizer = make([(4,)] * 3)
        for step in range(4):
            backward(parameters[: 2 if step == 2 else 3], 1.0)
            if step == 2:
                optimizer.step()  # The third gradient is launched by the step.
            elif hvd.rank() == 0:
                hvd.allreduce(torch.ones(1), name="aside")
                optimizer.step()
            else:
                optimizer.step()
                hvd.allreduce(torch.ones(1), name="aside")
            optimizer.zero_grad()

    worlds.run(2, body)


def test_other_gradients_of_a_batch_are_reduced_when_one_fails(worlds):
    """The others of the batch are reduced, and the next step works."""

    def body():
        parameters, optimizer = make([(4,)] * 3)
        for _ in range(2):
            backward(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if hvd.rank() == 1:
            parameters, optimizer = make([(4,), (5,), (4,)])
        backward(parameters, hvd.rank())
        try:
            optimizer.synchronize()
        except hvd.HorovodInternalError as error:
            text = str(error)
        else:
            raise AssertionError("different shapes were reduced")
        reduced = [bool((parameter.grad == 0.5).all()) for parameter in parameters]
        parameters, optimizer = make([(6,)] * 3)
        backward(parameters, hvd.rank())
        optimizer.step()
        assert all((parameter.grad == 0.5).all() for parameter in parameters)
        return text, reduced

    for text, reduced in worlds.run(2, body):
        assert "p1" in text and "[4]" in text and "[5]" in text
        assert reduced == [True, False, True]


def test_a_batch_that_is_refused_is_launched_by_the_step(worlds):
    """A name of it is in flight when the backward pass ends, and free when the step begins."""

    def body():
        parameters, optimizer = make([(4,)] * 2)
        for _ in range(2):
            backward(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad()
        handle = hvd.allreduce_async(torch.ones(4), name="p0")
        try:
            backward(parameters, hvd.rank())
        except ValueError as error:
            assert "p0" in str(error)
        else:
            raise AssertionError("a name in flight was taken")
        hvd.synchronize(handle)
        optimizer.synchronize()
        assert all((parameter.grad == 0.5).all() for parameter in parameters)

    worlds.run(2, body)


def test_no_step_after_a_backward_pass(worlds):
    """What an optimizer has in flight when it starts again, or another takes over, disturbs nobody."""

    def body():
        for turn in range(3):
            parameters, optimizer = make([(1000,)] * 3)
            for _ in range(2):
                backward(parameters, hvd.rank() + turn)
                optimizer.step()
                assert all((parameter.grad == 0.5 + turn).all() for parameter in parameters)
                optimizer.zero_grad()
            backward(parameters, 1.0)
            optimizer.load_state_dict(optimizer.state_dict())  # Waits for what is in flight.

    worlds.run(2, body)

"""Gradients of several streams in one bucket, and the wrong results without each of the waits."""

from __future__ import annotations

import pytest
import torch
from fake_gpu_device import DEVICE, FakeGpu

import farandole.torch as hvd


def train_in_two_streams(steps=4):
    """Train two branches, each in its own stream; return whether all gradients were right."""
    FakeGpu.of_environment().load().set_time("lazy")
    model = torch.nn.ModuleList([torch.nn.Linear(4, 4, bias=False) for _ in range(2)]).to(DEVICE)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), model.named_parameters())
    main, side = torch.accelerator.current_stream(), torch.Stream(device=DEVICE)
    found = []
    for step in range(steps):
        optimizer.zero_grad()
        inputs = torch.full((1, 4), float(step + hvd.rank()), device=DEVICE)
        side.wait_stream(main)
        with side:
            first = model[0](inputs).sum()
        second = model[1](inputs).sum()
        main.wait_stream(side)
        (first + second).backward()
        optimizer.step()
        found.append([parameter.grad.cpu().unique().tolist() for parameter in model.parameters()])
    return found == [[[step + 0.5]] * 2 for step in range(steps)]


def test_gradients_of_several_streams(worlds):
    assert worlds.run(2, train_in_two_streams) == [True, True]


def without_a_wait_for_other_streams():
    from farandole.torch.flat_gradients import FlatGradients

    FlatGradients._join_streams = lambda self: bool(self._streams.clear())


def without_a_wait_for_the_result():
    from farandole.worker.core.engine import Engine

    wait_on, other = Engine.wait_on, torch.Stream(device=DEVICE)
    Engine.wait_on = lambda self, submission, stream: wait_on(
        self, submission, stream._replace(address=other.native_handle)
    )


def without_an_event_at_submission():
    from farandole.torch.collectives.tensors import RAW_STREAMS

    other = torch.Stream(device=DEVICE)
    RAW_STREAMS[DEVICE] = lambda index: other.native_handle


def without_anybody_who_holds_the_bucket():
    from farandole.torch import flat_gradients

    make = flat_gradients.allreduce_call

    def forgetful(session, tensors, *rest):
        twins = [tensor.clone() for tensor in tensors]
        call = make(session, twins, twins, *rest[1:])
        call._finish = lambda _: None
        return call

    flat_gradients.allreduce_call = forgetful


@pytest.mark.parametrize(
    "mutation",
    [
        without_a_wait_for_other_streams,
        without_a_wait_for_the_result,
        without_an_event_at_submission,
        without_anybody_who_holds_the_bucket,
    ],
    ids=lambda mutation: mutation.__name__,
)
def test_these_tests_see_what_is_missing(own_worlds, mutation):
    def body():
        mutation()
        try:
            return train_in_two_streams()
        except RuntimeError:
            return False

    # On a busy machine, the host may be slower than a stream that is late, and see nothing.
    assert not all(all(own_worlds.run(2, body)) for _ in range(6))

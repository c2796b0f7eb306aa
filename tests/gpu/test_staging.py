"""Properties of the staging of CUDA tensors beyond right values: all forms, devices, and no waits."""

from __future__ import annotations

import pytest
import torch

import farandole.torch as hvd

pytestmark = pytest.mark.gpu


def test_every_form(world):
    """Plain, asynchronous, grouped, in place, and with rows of different number."""

    def body():
        rank = hvd.rank()
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8):
            mine = torch.full((1000, 3), rank + 1, dtype=dtype, device="cuda")
            for result in (
                hvd.allreduce(mine, op=hvd.Sum),
                hvd.synchronize(hvd.allreduce_async(mine, op=hvd.Sum)),
                hvd.grouped_allreduce([mine, mine], op=hvd.Sum)[1],
            ):
                assert result.device == mine.device and result.dtype == dtype and (result == 3).all()
            assert (mine == rank + 1).all()
            gathered = hvd.allgather(mine[: rank + 1])
            assert gathered.device == mine.device and gathered[:, 0].tolist() == [1, 2, 2]
            scattered = hvd.reducescatter(mine, op=hvd.Sum)
            assert scattered.device == mine.device and scattered.shape == (500, 3) and (scattered == 3).all()
            splits = torch.tensor([400, 500], dtype=torch.int32, device="cuda")
            exchanged, received = hvd.alltoall(mine, splits)
            assert exchanged.device == received.device == mine.device and received.tolist() == [[400, 500][rank]] * 2
            assert exchanged[:, 0].tolist() == [1] * received[0] + [2] * received[1]
            assert (hvd.broadcast(mine, 1) == 2).all()
            assert hvd.broadcast_(mine, 0) is mine and (mine == 1).all()
            assert hvd.allreduce_(mine, op=hvd.Sum) is mine and (mine == 2).all()
        assert hvd.allgather(torch.empty(0, 2, device="cuda")).shape == (0, 2)

    world.run(body)


def test_submission_does_not_wait_for_the_device(world):
    """While the device is busy, the call has returned and is not done."""

    def body():
        hvd.allreduce(torch.ones(1, device="cuda"))
        factor = torch.eye(4096, device="cuda")
        torch.cuda.synchronize()
        slow = factor
        for _ in range(300):
            slow = slow @ factor
        busy = torch.cuda.Event()
        busy.record()
        handle = hvd.allreduce_async(slow, op=hvd.Sum, name="busy")
        returned_early = not busy.query()
        assert (hvd.synchronize(handle) == 2 * factor).all()
        return returned_early

    assert world.run(body) == [True, True]


def test_a_wrong_request_raises_when_it_is_waited_for(world):
    """By then it is too late for the call itself; the next request works."""

    def body():
        try:
            hvd.broadcast(torch.ones(2, device="cuda"), 7)
        except ValueError as error:
            assert "root" in str(error)
        else:
            raise AssertionError("a root outside of the world went through")
        assert float(hvd.allreduce(torch.ones((), device="cuda"), op=hvd.Sum)) == 2.0

    world.run(body)


@pytest.mark.parametrize("compression", ["none", "fp16", "bf16"])
def test_optimizer(world, compression):
    """Two workers with half of the batch each end where one with the whole batch does."""

    def body(compression):
        def train(share, wrap):
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8)).cuda()
            inputs, targets = torch.randn(64, 64).cuda(), torch.randn(64, 8).cuda()
            optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model)
            for step in range(10):
                optimizer.zero_grad(set_to_none=step % 2 == 0)
                torch.nn.functional.mse_loss(model(inputs[share]), targets[share]).backward()
                optimizer.step()
            return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()]).cpu()

        together = train(
            slice(hvd.rank(), None, 2),
            lambda optimizer, model: hvd.DistributedOptimizer(
                optimizer, model.named_parameters(), compression=getattr(hvd.Compression, compression)
            ),
        )
        alone = train(slice(None), lambda optimizer, model: optimizer)
        tolerance = 1e-5 if compression == "none" else 5e-2
        torch.testing.assert_close(together, alone, rtol=tolerance, atol=tolerance)
        return together

    first, second = world.run(body, compression)
    assert torch.equal(first, second)


def test_gradient_through_collectives(world):
    def body():
        tensor = torch.ones(3, device="cuda", requires_grad=True)
        (hvd.allreduce(tensor, op=hvd.Sum) * (hvd.rank() + 1)).sum().backward()
        assert tensor.grad.device == tensor.device and (tensor.grad == 3).all()

    world.run(body)


def test_state(world):
    def body():
        torch.manual_seed(hvd.rank())
        model = torch.nn.Linear(3, 2).cuda()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (hvd.rank() + 1))
        model(torch.ones(1, 3, device="cuda")).sum().backward()
        optimizer.step()
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        moments = optimizer.state[model.weight]["exp_avg"]
        assert moments.is_cuda and optimizer.param_groups[0]["lr"] == 0.1
        return model.weight.detach().cpu(), moments.cpu()

    (weight, moments), (other_weight, other_moments) = world.run(body)
    assert torch.equal(weight, other_weight) and torch.equal(moments, other_moments)

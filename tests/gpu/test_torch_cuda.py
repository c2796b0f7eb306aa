"""CUDA tensors in `farandole.torch`: staged through pinned host memory, in order with the caller's stream.

Two workers share one device here, which is no problem for tensors that go through host memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import farandole

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

SIZE = 2


def on_all_ranks(body: Callable[[Any], Any]) -> list[Any]:
    """Run `body(hvd)` on all ranks of a world of two; return the results in rank order."""

    def call() -> Any:
        import farandole.torch as hvd

        hvd.init()
        try:
            return body(hvd)
        finally:
            hvd.shutdown()

    return farandole.run(call, num_proc=SIZE)


def test_collectives_give_what_they_give_on_the_cpu() -> None:
    def body(hvd: Any) -> list[str]:
        wrong = []
        for dtype in (
            torch.uint8,
            torch.int32,
            torch.int64,
            torch.float16,
            torch.bfloat16,
            torch.float32,
            torch.float64,
        ):
            for count in (0, 1, 1023, 1_000_003):
                host = (torch.arange(count) % 5 + hvd.rank()).to(dtype)
                device = host.cuda()
                name = f"{dtype}.{count}"
                pairs = {
                    "allreduce": (
                        hvd.allreduce(device, name=name, op=hvd.Sum),
                        hvd.allreduce(host, name=f"c{name}", op=hvd.Sum),
                    ),
                    "allgather": (hvd.allgather(device, name=name), hvd.allgather(host, name=f"c{name}")),
                    "broadcast": (hvd.broadcast(device, 1, name=name), hvd.broadcast(host, 1, name=f"c{name}")),
                }
                for kind, (got, expected) in pairs.items():
                    if got.device.type != "cuda" or not torch.equal(got.cpu(), expected):
                        wrong.append(f"{kind} of {name}")
        return wrong

    assert on_all_ranks(body) == [[], []]


def test_work_queued_before_is_seen_and_work_queued_after_sees_the_result() -> None:
    def body(hvd: Any) -> list[float]:
        stream = torch.cuda.Stream()
        results = []
        with torch.cuda.stream(stream):
            for step in range(20):
                x = torch.zeros(2_000_000, device="cuda")
                torch.cuda._sleep(5_000_000)  # the device is late: a read without a wait gets zeros
                x += step + 1 + hvd.rank()
                hvd.allreduce_(x, name="x", op=hvd.Sum)
                x *= 2
                results.append(x.sum().item() / x.numel())
        return results

    expected = [2.0 * (2 * (step + 1) + 1) for step in range(20)]
    assert on_all_ranks(body) == [expected, expected]


def test_many_async_requests_in_flight() -> None:
    def body(hvd: Any) -> bool:
        tensors = [torch.full((1000 * i + 1,), float(hvd.rank() + i), device="cuda") for i in range(50)]
        handles = [hvd.allreduce_async_(t, name=f"t{i}", op=hvd.Average) for i, t in enumerate(tensors)]
        for handle in handles:
            hvd.synchronize(handle)
        return all(torch.equal(t, torch.full_like(t, i + 0.5)) for i, t in enumerate(tensors))

    assert on_all_ranks(body) == [True, True]


def test_the_optimizer_trains_to_the_same_on_gpu_and_cpu() -> None:
    def body(hvd: Any) -> tuple[list[float], list[float]]:
        def train(device: str) -> list[float]:
            torch.manual_seed(1)
            model = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.Tanh(), torch.nn.Linear(50, 3)).to(device)
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
            )
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
            data = torch.Generator().manual_seed(hvd.rank())
            for _ in range(20):
                inputs = torch.randn(16, 20, generator=data).to(device)
                optimizer.zero_grad()
                model(inputs).square().mean().backward()
                optimizer.step()
            return torch.cat([p.detach().cpu().flatten() for p in model.parameters()]).tolist()

        torch.backends.cuda.matmul.allow_tf32 = False
        return train("cuda"), train("cpu")

    (first_gpu, first_cpu), (second_gpu, second_cpu) = on_all_ranks(body)
    assert first_gpu == second_gpu, "the workers hold different parameters"
    assert first_cpu == second_cpu
    assert first_gpu == pytest.approx(first_cpu, rel=1e-3, abs=1e-5)


def test_the_callers_mistakes_are_told_apart() -> None:
    def body(hvd: Any) -> str:
        try:
            hvd.allreduce(torch.ones(3 + hvd.rank(), device="cuda"), name="x")
        except hvd.HorovodInternalError as error:
            message = str(error)
        torch.testing.assert_close(hvd.allreduce(torch.ones(2, device="cuda"), name="x"), torch.ones(2, device="cuda"))
        return message

    for message in on_all_ranks(body):
        assert "rank 0 sent a tensor of shape [3], but rank 1 sent a tensor of shape [4]" in message

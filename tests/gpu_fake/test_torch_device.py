"""PyTorch's device on the fake GPU: what it computes, and that missing waits show."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import pytest
import torch
from fake_gpu_device import FakeGpu
from nurseries import Nurseries
from worlds import Worker, WorkerGone, ship


@pytest.fixture(scope="module")
def worker(fake_gpu: FakeGpu, nurseries: Nurseries) -> Iterator[Worker]:
    """Return a process with two devices."""
    worker = nurseries["torch"].fork(fake_gpu.environment(devices=2))
    yield worker
    worker.close()


@pytest.fixture
def own_worker(fake_gpu: FakeGpu, nurseries: Nurseries) -> Iterator[Worker]:
    """Return a process whose device is broken afterwards."""
    worker = nurseries["torch"].fork(fake_gpu.environment())
    yield worker
    worker.close()


def run(worker: Worker, function: Callable[..., None], *arguments: object) -> None:
    ship(function)
    worker.send(function, arguments)
    worker.receive()


def small_training(device, make_optimizer):
    """Return the parameters after ten steps."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.Tanh(), torch.nn.Linear(50, 3)).to(device)
    optimizer = make_optimizer(model.parameters())
    generator = torch.Generator().manual_seed(1)
    for _ in range(10):
        inputs = torch.randn(16, 20, generator=generator).to(device)
        targets = torch.randn(16, 3, generator=generator).to(device)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    return torch.cat([parameter.detach().cpu().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("time", ["eager", "lazy", "random"])
def test_training_gives_the_parameters_of_the_cpu(worker, fake_gpu, time):
    def train():
        fake_gpu.load().set_time(time, longest_delay_us=200)
        for make_optimizer in (
            lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
            lambda parameters: torch.optim.SGD(parameters, lr=0.1, foreach=True),
            lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
        ):
            assert torch.equal(small_training("fakegpu", make_optimizer), small_training("cpu", make_optimizer))

    run(worker, train)


@pytest.mark.parametrize("waits", [True, False])
def test_other_stream_sees_old_numbers_unless_it_waits(worker, fake_gpu, waits):
    def read():
        driver = fake_gpu.load()
        driver.set_time("eager")
        first, second = torch.Stream(device="fakegpu"), torch.Stream(device="fakegpu")
        new = torch.full((4,), 3.0).pin_memory()
        with first:
            tensor = torch.zeros(4, device="fakegpu")
        first.synchronize()
        driver.hold(first)
        with first:
            tensor.copy_(new, non_blocking=True)
        if waits:
            second.wait_stream(first)
            driver.release(first)
        with second:
            found = tensor.cpu()
        driver.release(first)
        first.synchronize()
        assert found.tolist() == [3.0 if waits else 0.0] * 4
        assert tensor.cpu().tolist() == [3.0] * 4

    run(worker, read)


@pytest.mark.parametrize("records", [True, False])
def test_memory_freed_before_another_stream_has_read_it_breaks_the_device(own_worker, fake_gpu, records):
    def free():
        driver = fake_gpu.load()
        driver.set_time("eager")
        owner, reader = torch.Stream(device="fakegpu"), torch.Stream(device="fakegpu")
        found = torch.zeros(4).pin_memory()
        with owner:
            tensor = torch.full((4,), 5.0, device="fakegpu")
        owner.synchronize()
        driver.hold(reader)
        with reader:
            found.copy_(tensor, non_blocking=True)
        if records:
            tensor.record_stream(reader)
        del tensor
        if records:
            driver.release(reader)
            reader.synchronize()
            assert found.tolist() == [5.0] * 4
        else:
            owner.synchronize()
            driver.release(reader)
            with pytest.raises(RuntimeError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
                reader.synchronize()

    run(own_worker, free)


def test_host_access_to_a_tensor_ends_the_process(own_worker, fake_gpu):
    def touch():
        fake_gpu.load()
        tensor = torch.ones(4, device="fakegpu")
        ctypes.memset(tensor.data_ptr(), 0, 4)

    with pytest.raises(WorkerGone):
        run(own_worker, touch)


def test_streams_are_those_of_the_driver(worker, fake_gpu):
    def compare():
        driver = fake_gpu.load()
        stream = torch.Stream(device="fakegpu")
        handle = ctypes.c_void_p(stream.native_handle)
        torch.accelerator.set_device_index(0)
        assert driver.library.cuStreamQuery(handle) == 0
        driver.hold(stream)
        with stream:
            assert torch.accelerator.current_stream().native_handle == stream.native_handle
            torch.ones(2).pin_memory().to("fakegpu", non_blocking=True)
        not_ready = 600
        assert driver.library.cuStreamQuery(handle) == not_ready
        assert not stream.query()
        event = stream.record_event()
        assert not event.query()
        driver.release(stream)
        event.synchronize()
        assert stream.query()
        assert not torch.accelerator.current_stream().native_handle

    run(worker, compare)


def test_gradient_hooks_run_on_the_stream_of_the_forward_pass(worker, fake_gpu):
    def train():
        fake_gpu.load()
        stream = torch.Stream(device="fakegpu")
        seen = []
        model = torch.nn.Linear(3, 2).to("fakegpu")
        torch.accelerator.synchronize()
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(
                lambda _: seen.append(torch.accelerator.current_stream().native_handle)
            )
        with stream:
            loss = model(torch.ones(1, 3, device="fakegpu")).sum()
        loss.backward()
        assert seen == [stream.native_handle] * 2

    run(worker, train)


def test_only_what_waits_on_a_gpu_is_counted_as_a_wait(worker, fake_gpu):
    def count():
        driver = fake_gpu.load()
        pinned = torch.zeros(3).pin_memory()
        assert pinned.is_pinned()
        tensor = torch.ones(3, device="fakegpu")
        driver.reset_counts()
        tensor = (tensor + 1) * tensor.sum()
        tensor[1:] = 7
        pinned.copy_(tensor, non_blocking=True)
        torch._foreach_mul_([tensor, tensor.clone()], 2.0)
        assert driver.count("host_waits") == 0
        assert tensor[1].item() == 14
        assert driver.count("host_waits") == 1
        assert pinned.tolist() == [6, 7, 7]
        assert tensor.cpu().tolist() == [12, 14, 14]
        assert driver.count("host_waits") >= 2

    run(worker, count)


def test_devices_have_tensors_and_streams_of_their_own(worker, fake_gpu):
    def compute():
        fake_gpu.load()
        assert torch.accelerator.device_count() == 2
        here = torch.arange(6.0, device="fakegpu:0").reshape(2, 3)
        there = here.to("fakegpu:1")
        assert there.device == torch.device("fakegpu", 1)
        weight = torch.ones(3, device="fakegpu:1", requires_grad=True)
        (there @ weight).sum().backward()
        assert weight.grad.device == torch.device("fakegpu", 1)
        assert weight.grad.tolist() == [3, 5, 7]
        stream = torch.Stream(device="fakegpu:1")
        with stream:
            assert torch.accelerator.current_device_index() == 1
            torch.ones(2, device="fakegpu:1")
        with pytest.raises(RuntimeError, match="no device 2"):
            torch.empty(1, device="fakegpu:2")

    run(worker, compute)


def test_tensors_of_all_kinds_are_those_of_the_cpu(worker, fake_gpu):
    def compare():
        fake_gpu.load().set_time("random", longest_delay_us=100)

        def results(device):
            rows = torch.arange(12, device=device).reshape(3, 4)
            wide = rows.to(torch.float64).t()[1:, ::2]
            yield wide.clone()
            wide.mul_(3)
            yield wide
            rows[:, 1] = 5
            yield rows
            yield rows.to(torch.bfloat16).contiguous()
            yield rows > 4
            yield torch.cat([rows, rows.flip(0)])
            yield torch.zeros((), device=device) + 2
            yield torch.empty(0, 3, device=device)
            yield torch.empty(2, device=device).resize_(4).fill_(1)
            yield rows[torch.tensor([2, 0], device=device)]

        for mine, expected in zip(results("fakegpu"), results("cpu"), strict=True):
            assert mine.dtype == expected.dtype
            assert torch.equal(mine.cpu(), expected), expected

    run(worker, compare)

"""Checkpoints of tensors on a GPU: the training goes on while they are copied, and they hold what was there."""

from __future__ import annotations

import torch
from fake_gpu_device import DEVICE, FakeGpu
from worlds import wait_until

from farandole.torch.elastic.checkpoint import Checkpoint


def test_a_checkpoint_holds_what_was_there_although_the_training_goes_on(worlds, tmp_path):
    def body(folder):
        FakeGpu.of_environment().load().set_time("random", longest_delay_us=2000)
        checkpoint = Checkpoint(folder, keep=20, say=lambda level, line: None)
        values = torch.zeros(3, 1000, device=DEVICE)
        for step in range(1, 9):
            assert checkpoint.save({"values": values}, step, rank=0, size=1)
            values.add_(1)
            assert checkpoint.wait()
            found = {"values": torch.full((3, 1000), -1.0)}
            assert checkpoint.load(found) == step
            assert found["values"].unique().tolist() == [step - 1.0]

    worlds.run(1, body, tmp_path)


def test_a_training_does_not_wait_for_a_copy(worlds, tmp_path):
    def body(folder):
        driver = FakeGpu.of_environment().load()
        driver.set_time("eager")
        checkpoint = Checkpoint(folder, say=lambda level, line: None)
        stream = torch.Stream(device=DEVICE)
        threes, fours = torch.full((10,), 3.0).pin_memory(), torch.full((10,), 4.0).pin_memory()
        with stream:
            values = torch.full((10,), 2.0, device=DEVICE)
            driver.hold(stream)
            values.copy_(threes, non_blocking=True)
            checkpoint.save({"values": values}, 1, rank=0, size=1)
            values.copy_(fours, non_blocking=True)
            assert not checkpoint.wait(0.05)
            driver.release(stream)
            assert checkpoint.wait()
        found = {"values": torch.zeros(10)}
        checkpoint.load(found)
        assert found["values"].unique().tolist() == [3.0]

    worlds.run(1, body, tmp_path)


def save_while_copies_stand(folder, numel: int, is_free: bool) -> None:
    """Save a tensor whose copy to the host stands still, and change it; `is_free` says whether that must happen before.

    The checkpoint must hold what was there, and give all memory of the GPU back.
    """
    driver = FakeGpu.of_environment().load()
    driver.set_time("eager")
    module = getattr(torch, DEVICE)
    make_stream, held = module.Stream, []

    def make_held_stream(device: torch.device) -> torch.Stream:
        held.append(make_stream(device))
        driver.hold(held[-1])
        return held[-1]

    checkpoint = Checkpoint(folder, say=lambda level, line: None)
    values = torch.full((numel,), 2.0, device=DEVICE)
    threes = torch.full((numel,), 3.0).pin_memory()
    module.synchronize()
    allocations = driver.count("live_allocations")
    module.Stream = make_held_stream
    try:
        assert checkpoint.save({"values": values}, 1, rank=0, size=1)
    finally:
        module.Stream = make_stream
    (side,) = held
    values.copy_(threes, non_blocking=True)
    event = module.current_stream().record_event()
    if is_free:
        wait_until(event.query)
    assert not checkpoint.wait(0.05)
    assert event.query() is is_free
    driver.release(side)
    assert checkpoint.wait()
    module.synchronize()
    assert driver.count("live_allocations") == allocations
    found = {"values": torch.zeros(numel)}
    checkpoint.load(found)
    assert found["values"].unique().tolist() == [2.0]
    assert values.unique().tolist() == [3.0]


def test_the_stream_of_a_training_does_not_wait_for_copies_to_the_host(worlds, tmp_path):
    worlds.run(1, save_while_copies_stand, tmp_path, 1000, True)


def test_without_memory_for_a_second_copy_the_stream_of_a_training_waits(worlds_with, tmp_path):
    worlds_with(FAKE_GPU_MEMORY=str(2 << 20)).run(1, save_while_copies_stand, tmp_path, 1 << 18, False)

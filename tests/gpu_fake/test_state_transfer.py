"""The state of a training goes from one GPU to the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from fake_gpu_device import DEVICE, FakeGpu, nccl_count
from small_trainings import flat

import farandole.torch as hvd


def make_things(value: float, device: str = DEVICE) -> dict[str, Any]:
    """Return a model of some hundred kilobytes, and its optimizer after a step."""
    model = torch.nn.Sequential(torch.nn.Linear(100, 300), torch.nn.BatchNorm1d(300), torch.nn.Linear(300, 50))
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.arange(parameter.numel()).view(parameter.shape) * 1e-3 + value + number)
    model = model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, value)
    optimizer.step()
    return {"model": model, "optimizer": optimizer}


def moments(things: dict[str, Any]) -> list[np.ndarray]:
    state = things["optimizer"].state_dict()["state"].values()
    return [np.asarray(each[key].cpu()) for each in state for key in ("step", "exp_avg", "exp_avg_sq")]


def use_pieces(nbytes: int, at_once: int) -> None:
    from farandole.worker.elastic import pieces

    pieces.PIECE_BYTES, pieces.GPU_PIECES = nbytes, at_once


def give(sources: list[int], receivers: list[int]) -> dict[str, Any]:
    """Transfer the state of the sources; return what the rank has then, and what it took."""
    from farandole.torch.elastic.transfer import transfer

    driver = FakeGpu.of_environment().load()
    driver.set_time("random", longest_delay_us=200)
    use_pieces(4096, 8)
    # From here on there is a communicator, where there may be one.
    hvd.allreduce(torch.ones(4, device=DEVICE), name="first")
    things = make_things(7.0 if hvd.rank() in sources else 1.0 + hvd.rank())
    pinned, operations = driver.count("live_host_allocations"), nccl_count("operations")
    places = [parameter.data_ptr() for parameter in things["model"].parameters()]
    transfer(things, sources, receivers)
    assert places == [parameter.data_ptr() for parameter in things["model"].parameters()]
    return {
        "pinned": driver.count("live_host_allocations") - pinned,
        "operations": nccl_count("operations") - operations,
        "parameters": flat(things["model"].cpu()),
        "moments": moments(things),
    }


@pytest.mark.parametrize(
    ("gpu", "sources", "receivers"),
    [
        ("nccl", [0], [1]),
        ("staged", [0], [1]),
        ("nccl", [0, 1], [2, 3]),
        ("staged", [1, 2], [0]),
        ("staged", [0], [1, 2]),
    ],
)
def test_receivers_have_what_sources_have(worlds_with, gpu, sources, receivers):
    results = worlds_with(FARANDOLE_GPU=gpu, NCCL_MULTI_RANK_GPU_ENABLE="1").run(
        max(*sources, *receivers) + 1, give, sources, receivers
    )
    wanted = results[sources[0]]
    for receiver in receivers:
        np.testing.assert_array_equal(results[receiver]["parameters"], wanted["parameters"])
        for mine, other in zip(results[receiver]["moments"], wanted["moments"], strict=True):
            np.testing.assert_array_equal(mine, other)
        if gpu == "nccl":
            assert results[receiver]["operations"] > 100
            assert results[receiver]["pinned"] == 0
        else:
            # There are some hundred pieces.
            assert 0 < results[receiver]["pinned"] <= 8
            assert 0 < wanted["pinned"] <= 8


def test_pieces_on_their_way_through_host_memory_take_64_mib_at_most():
    from farandole.worker.elastic import pieces

    assert pieces.PIECE_BYTES * pieces.GPU_PIECES <= 64 << 20


def test_a_rank_without_a_gpu_gets_the_state_in_host_memory(worlds):
    def body():
        from farandole.torch.elastic.transfer import RAW_STREAMS, transfer

        things = make_things(3.0 - hvd.rank(), "cpu" if hvd.rank() else DEVICE)
        kept = dict(RAW_STREAMS)
        if hvd.rank():
            RAW_STREAMS.clear()
        try:
            transfer(things, [0], [1])
        finally:
            RAW_STREAMS.update(kept)
        assert next(things["model"].parameters()).device.type == ("cpu" if hvd.rank() else DEVICE)
        return flat(things["model"].cpu())

    results = worlds.run(2, body)
    np.testing.assert_array_equal(results[0], results[1])


def test_only_what_differs_is_sent(worlds):
    def body():
        from farandole.torch.elastic.transfer import transfer

        use_pieces(4096, 8)
        hvd.allreduce(torch.ones(4, device=DEVICE), name="first")
        things = make_things(5.0)
        if hvd.rank():
            with torch.no_grad():
                things["model"][2].weight.view(-1)[1:3] = things["model"][2].weight.view(-1)[1:3].flip(0).clone()
        before = hvd.stats()["operations"].get("transfer", {}).get("requests", 0)
        transfer(things, [0], [1], compare=True)
        return hvd.stats()["operations"]["transfer"]["requests"] - before, flat(things["model"].cpu())

    (first, mine), (second, other) = worlds.run(2, body)
    assert first == second == 1
    np.testing.assert_array_equal(mine, other)

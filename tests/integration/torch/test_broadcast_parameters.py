"""Giving all workers the same parameters."""

from __future__ import annotations

import pytest
import torch

import farandole.torch as hvd


@pytest.mark.parametrize("form", ["state_dict", "named_parameters", "parameters", "list"])
def test_broadcast_parameters(worlds, form):
    """Dicts, pairs and plain tensors, from any root; also tensors that are not contiguous, and none at all."""

    def body(form):
        for root in range(hvd.size()):
            torch.manual_seed(hvd.rank())
            model = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3))
            model = model.to(memory_format=torch.channels_last)
            forms = {
                "state_dict": model.state_dict,
                "named_parameters": model.named_parameters,
                "parameters": model.parameters,
                "list": lambda model=model: list(model.named_parameters()),
            }
            hvd.broadcast_parameters(forms[form](), root_rank=root)
            torch.manual_seed(root)
            wanted = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3))
            for ours, theirs in zip(model.parameters(), wanted.parameters(), strict=True):
                assert torch.equal(ours, theirs)
        hvd.broadcast_parameters({}, root_rank=0)

    worlds.run(2, body, form)


@pytest.mark.parametrize("root", [0, 2])
def test_all_kinds_of_tensors(worlds, root):
    """Element types, shapes without dimensions and without elements, strides, shared memory, complex numbers."""

    def make(rank):
        matrix = torch.arange(12.0).reshape(3, 4) + 100 * rank
        return {
            "bf16": torch.full((3,), rank + 0.5, dtype=torch.bfloat16),
            "bool": torch.tensor([rank == 0, rank == 2]),
            "complex": torch.tensor([1 + 2j, 3j]) * (rank + 1),
            "conjugated": torch.tensor([1 + 2j, 3j]).conj(),
            "float8": torch.full((2,), float(rank), dtype=torch.float32).to(torch.float8_e4m3fn),
            "uint16": torch.full((2,), rank, dtype=torch.uint16),
            "empty": torch.empty(0, 3),
            "scalar": torch.tensor(rank),
            "complex scalar": torch.tensor(1j * rank),
            "columns": matrix.t(),
            "every other": torch.arange(6.0)[::2] + rank,
            "tied": matrix,
            "tied again": matrix.view(4, 3),
            "parameter": torch.nn.Parameter(torch.full((2,), float(rank))),
        }

    def body(root):
        tensors, expected = make(hvd.rank()), make(root)
        hvd.broadcast_parameters(tensors, root_rank=root)
        for name, value in tensors.items():
            assert value.dtype == expected[name].dtype
            assert torch.equal(value.to(torch.complex128), expected[name].to(torch.complex128)), name

    worlds.run(3, body, root)


def test_parameters_in_a_process_set(worlds):
    def body():
        pair = hvd.add_process_set([0, 2])
        model = torch.nn.Linear(2, 1)
        with torch.no_grad():
            model.weight.fill_(hvd.rank())
        optimizer = torch.optim.SGD(model.parameters(), lr=hvd.rank() + 1.0)
        hvd.broadcast_parameters(model.state_dict(), root_rank=2, process_set=pair)
        hvd.broadcast_optimizer_state(optimizer, root_rank=2, process_set=pair)
        hvd.barrier()
        hvd.remove_process_set(pair)
        return float(model.weight[0, 0]), optimizer.param_groups[0]["lr"]

    assert worlds.run(3, body) == [(2.0, 3.0), (1.0, 2.0), (2.0, 3.0)]


def test_different_models_are_an_error_and_no_wait(worlds):
    def body():
        layers = [torch.nn.Linear(2, 2) for _ in range(2 + hvd.rank())]
        try:
            hvd.broadcast_parameters(torch.nn.Sequential(*layers).state_dict(), root_rank=0)
        except hvd.HorovodInternalError as error:
            assert "rank 1" in str(error) and "2.weight" in str(error)
        else:
            raise AssertionError("different models went through")

    worlds.run(2, body)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    ("difference", "message"),
    [
        ("name", "rank 0 has b"),
        ("shape", "shape"),
        ("form", "rank 0 has a dict, and rank 1 has another iterable"),
    ],
)
def test_other_parameters_on_one_rank_are_an_error_on_all_ranks(worlds, size, difference, message):
    def body(difference, message):
        other = difference if hvd.rank() == 1 else ""
        second = "c" if other == "name" else "b"
        params = {"a": torch.ones(2), second: torch.ones(3 if other == "shape" else 2)}
        with pytest.raises(hvd.HorovodInternalError, match=message):
            hvd.broadcast_parameters(list(params.items()) if other == "form" else params, root_rank=0)
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()

    worlds.run(size, body, difference, message)


def test_values_that_are_no_tensors(worlds):
    def body():
        state = {"weight": torch.full((2,), float(hvd.rank())), "epoch": hvd.rank(), "name": f"rank {hvd.rank()}"}
        hvd.broadcast_parameters(state, root_rank=1)
        assert (state["weight"] == 1.0).all() and state["epoch"] == 1 and state["name"] == "rank 1"

    worlds.run(2, body)


def test_invalid_parameters_are_refused(worlds):
    def body():
        for wrong in (5, "weights", torch.ones(2), [1, 2], None, torch.nn.Sequential(torch.nn.Linear(1, 1))):
            try:
                hvd.broadcast_parameters(wrong, root_rank=0)
            except ValueError as error:
                assert "invalid params of type" in str(error)
            else:
                raise AssertionError(f"{wrong} went through")

    worlds.run(2, body)

"""Gradients as data: what goes through which collective, and what is done after it."""

from __future__ import annotations

import pytest

from farandole.errors import InvalidRequestError
from farandole.worker.collectives.all_collectives import COLLECTIVES
from farandole.worker.collectives.gradient_rules import CallFacts, Nothing, OnlyAt, PadRows, Plan, Scale, TakeRows
from farandole.worker.core.dtype import Adasum, Average, Max, Min, Product, Sum

AVERAGE = {"op": Average, "prescale": 1.0, "postscale": 1.0}


def plan(name: str, options: dict[str, object], **facts: object) -> Plan:
    whole = {"shapes": [(7, 2)], "received": []} | facts
    return COLLECTIVES[name].gradient.plan(CallFacts(options, lambda: 3, lambda: 1, **whole))  # type: ignore[arg-type]


def reduction(op: int) -> dict[str, object]:
    return {"op": op, "prescale": 0.5, "postscale": 3.0}


@pytest.mark.parametrize("op", [Average, Sum, Adasum])
def test_gradient_of_a_linear_reduction_is_the_same_reduction(op):
    assert plan("allreduce", reduction(op)) == Plan("allreduce", reduction(op), (Nothing(),))
    two = plan("allreduce", reduction(op), shapes=[(7, 2), ()])
    assert two == Plan("allreduce", reduction(op), (Nothing(), Nothing()))
    assert not COLLECTIVES["allreduce"].gradient.needs_inputs(reduction(op))


@pytest.mark.parametrize("op", [Min, Max, Product])
def test_gradient_of_another_reduction_needs_the_inputs(op):
    assert COLLECTIVES["allreduce"].gradient.needs_inputs(reduction(op))


def test_gradient_of_allgather_is_each_ranks_rows_of_the_average():
    found = plan("allgather", {}, received=[(1, 2, 3), (0, 0, 4)])
    assert found == Plan("allreduce", AVERAGE, [TakeRows((1, 2, 3), 1), TakeRows((0, 0, 4), 1)])


def test_gradient_of_broadcast_is_the_average_on_the_root():
    assert plan("broadcast", {"root": 4}) == Plan("allreduce", AVERAGE, (OnlyAt(4),))


def test_gradient_of_alltoall_sends_the_rows_back():
    found = plan("alltoall", {"splits": None}, received=[(1, 2, 3)])
    assert found == Plan("alltoall", {"splits": (1, 2, 3)}, (PadRows(7),))


def test_gradient_of_reducescatter_is_gathered():
    assert plan("reducescatter", reduction(Average)) == Plan("allgather", {}, (Scale(1.5),))
    assert plan("reducescatter", reduction(Sum)) == Plan("allgather", {}, (Scale(1.5, 3),))
    with pytest.raises(InvalidRequestError, match="reducescatter has a gradient for Average and Sum only"):
        plan("reducescatter", reduction(Max))


def test_of_reduce_it_is_that_of_the_root():
    for op in (Average, Sum):
        found = plan("reduce", {**reduction(op), "root": 4})
        assert found == Plan("allreduce", reduction(op), (Nothing(),), before=OnlyAt(4))
    with pytest.raises(InvalidRequestError, match="reduce has a gradient for Average and Sum only"):
        plan("reduce", {**reduction(Max), "root": 1})

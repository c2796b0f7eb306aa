"""Calls that are made again under one name, of tensors that are like the last one and of others."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import check, reduced, values

from farandole.errors import MismatchError
from farandole.worker.core import basics

# The front ends with a quick way for calls that are made again.
QUICK = ("numpy", "torch")
NOT_QUICK = "this front end has no quick way"
METHODS = [pytest.param("allreduce"), pytest.param("allreduce_", marks=pytest.mark.needs("in place"))]


def _call(front, method, shape, dtype, op, step, **options):
    """Make one call and check its result."""
    hvd = front.hvd
    inputs = [values(rank, shape, dtype) + step % 3 for rank in range(hvd.size())]
    tensor = front.tensor(inputs[hvd.rank()], dtype)
    result = getattr(hvd, method)(tensor, name="repeated", op=getattr(hvd, op), **options)
    check(front.array(result), reduced(inputs, op, dtype), dtype)


@pytest.mark.parametrize("method", METHODS)
def test_values_where_everything_but_the_name_changes(world, method):
    def body(front):
        for step in range(4):
            for shape in ((3,), (2, 3), (3,), (3,)):
                for dtype in ("float32", "float32", "int64"):
                    for op in ("Sum", "Sum", "Max"):
                        _call(front, method, shape, dtype, op, step)

    world.run(body)


@pytest.mark.needs("numpy")
def test_list_is_not_kept_as_a_tensor(world):
    def body(front):
        hvd = front.hvd
        for given in ([1.0, 2.0], [1.0, 2.0], np.array([1.0, 2.0]), [1.0, 2.0]):
            result = hvd.allreduce(given, name="listed", op=hvd.Sum)
            np.testing.assert_array_equal(result, [hvd.size(), 2 * hvd.size()])

    world.run(body)


@pytest.mark.needs("handles")
def test_two_calls_of_one_name_in_turns(world):
    """An asynchronous call and a blocking one share a name, not a request."""

    def body(front):
        hvd = front.hvd
        for step in range(1, 6):
            handle = hvd.allreduce_async(front.tensor([float(step)]), name="turns", op=hvd.Sum)
            assert front.number(hvd.synchronize(handle)) == step * hvd.size()
            assert (
                front.number(hvd.allreduce(front.tensor([float(step)]), name="turns", op=hvd.Sum)) == step * hvd.size()
            )

    world.run(body)


@pytest.mark.needs("handles")
def test_name_in_flight_is_refused_and_the_first_call_goes_on(world, front):
    """On a GPU nothing of the refused call has begun, whose tensor is freed at once."""
    if front not in (*QUICK, "torch-fakegpu", "torch-nccl"):
        pytest.skip(NOT_QUICK)

    def body(front):
        hvd = front.hvd
        for _ in range(4):
            handle = hvd.allreduce_async(front.tensor([1.0]), name="flying", op=hvd.Sum)
            with pytest.raises(ValueError, match="same name"):
                hvd.allreduce_async(front.tensor([2.0]), name="flying", op=hvd.Sum)
            assert front.number(hvd.synchronize(handle)) == hvd.size()

    world.run(body)


@pytest.mark.needs("handles")
def test_mismatch_of_repeated_call_is_reported_and_the_next_one_works(world):
    if world.size == 1:
        pytest.skip("a rank agrees with itself")

    def body(front):
        hvd = front.hvd
        for _ in range(3):
            for _ in range(3):
                hvd.allreduce(front.tensor([1.0]), name="differs", op=hvd.Sum)
            with pytest.raises(MismatchError):
                hvd.allreduce(front.tensor([1.0]), name="differs", op=hvd.Sum if hvd.rank() else hvd.Max)

    world.run(body)


@pytest.mark.needs("in place")
def test_factors_are_those_of_each_call(world):
    """The sign of a zero is part of the result, although the two zeros are equal."""

    def body(front):
        hvd = front.hvd
        for factor in (0.5, 0.5, 2.0, 0.0, -0.0, 0.0, -0.0, 0, 0, -0.0, 0):
            result = hvd.allreduce(front.tensor([1.0]), name="factors", op=hvd.Max, prescale_factor=factor)
            found = np.asarray(front.array(result))
            np.testing.assert_array_equal(found, [factor])
            assert np.signbit(found[0]) == np.signbit(factor)

    world.run(body)


@pytest.mark.needs("handles")
def test_repeated_call_takes_the_quick_way(world, front):
    """The session is not asked to carry the call out."""
    if front not in QUICK:
        pytest.skip(NOT_QUICK)

    def body(here):
        hvd, session = here.hvd, basics.current()

        def call():
            result = hvd.allreduce(here.tensor([1.0, 2.0]), name="quick", op=hvd.Sum)
            np.testing.assert_array_equal(here.array(result), [hvd.size(), 2 * hvd.size()])

        for _ in range(3):
            call()
        carry_out = session.carry_out_once
        session.carry_out_once = None
        try:
            call()
        finally:
            session.carry_out_once = carry_out

    world.run(body)

"""Calls without a name: ranks match them by their order, and their names recur."""

from __future__ import annotations

import random

import numpy as np
import pytest

from farandole.errors import MismatchError
from farandole.worker.core import basics
from farandole.worker.core.request import RECURRING_NAMES

# The front ends with a quick way for calls that are made again.
QUICK = ("numpy", "torch")


def _known_names(front, **options):
    """Make so many calls that each of the names that recur is known to the engine, and kept by the front end."""
    for _ in range(RECURRING_NAMES):
        front.hvd.allreduce(front.tensor([1.0]), op=front.hvd.Sum, **options)


@pytest.mark.needs("handles")
def test_more_calls_in_flight_than_names(world):
    """Each gets its own result, whatever the order in which a rank waits for them."""

    def body(front):
        hvd = front.hvd
        count = 2 * RECURRING_NAMES + 60
        for _ in range(2):
            handles = [
                hvd.allreduce_async(front.tensor([float(index)] * (1 + index % 3)), op=hvd.Sum)
                for index in range(count)
            ]
            order = list(range(count))
            random.Random(hvd.rank()).shuffle(order)
            for index in order:
                result = front.array(hvd.synchronize(handles[index]))
                np.testing.assert_array_equal(result, [index * hvd.size()] * (1 + index % 3))

    world.run(body)


@pytest.mark.needs("handles")
def test_mismatch_is_reported_and_the_next_calls_match(world, front):
    if world.size == 1:
        pytest.skip("one rank agrees with itself")
    if front not in QUICK:
        pytest.skip("this front end has no quick way")

    def body(front):
        hvd = front.hvd
        _known_names(front)
        for _ in range(3):
            with pytest.raises(MismatchError):
                hvd.allreduce(front.tensor([1.0] * (2 if hvd.rank() else 3)), op=hvd.Sum)
            with pytest.raises(MismatchError):
                hvd.allreduce(front.tensor([1.0]), op=hvd.Sum if hvd.rank() else hvd.Max)
            for value in range(3):
                assert front.number(hvd.allreduce(front.tensor([value]), op=hvd.Sum)) == value * hvd.size()

    world.run(body)


@pytest.mark.needs("handles")
def test_refused_call_is_not_counted(world):
    """One rank makes calls that are refused; its next ones match those of the others."""

    def body(front):
        hvd = front.hvd
        one = front.tensor([1.0])
        for value in range(5):
            if hvd.rank() == 0:
                with pytest.raises(ValueError, match="root"):
                    hvd.broadcast(one, hvd.size())
                with pytest.raises(ValueError, match="dimension"):
                    hvd.allgather(front.tensor(1.0))
            assert front.number(hvd.broadcast(front.tensor([value + hvd.rank()]), 0)) == value
            assert front.number(hvd.allreduce(front.tensor([value]), op=hvd.Sum)) == value * hvd.size()
            assert len(front.array(hvd.allgather(one))) == hvd.size()

    world.run(body)


@pytest.mark.needs("handles", "join")
def test_calls_around_joins(world):
    """Ranks make different numbers of calls before each join, and count from 0 after it."""

    def body(front):
        hvd = front.hvd
        for epoch in range(4):
            for _ in range(20 * (1 + (hvd.rank() + epoch) % hvd.size())):
                hvd.allreduce(front.tensor([1.0]), op=hvd.Sum)
            hvd.join()
            for value in range(30):
                assert front.number(hvd.allreduce(front.tensor([value]), op=hvd.Sum)) == value * hvd.size()

    world.run(body)


@pytest.mark.needs("handles")
def test_blocking_and_asynchronous_calls_match(world):
    """A rank that waits at once matches one that waits later."""

    def body(front):
        hvd = front.hvd
        for value in range(50):
            if (value + hvd.rank()) % 2:
                result = hvd.allreduce(front.tensor([value]), op=hvd.Sum)
            else:
                result = hvd.synchronize(hvd.allreduce_async(front.tensor([value]), op=hvd.Sum))
            assert front.number(result) == value * hvd.size()

    world.run(body)


@pytest.mark.needs("handles")
def test_call_that_recurs_takes_the_quick_way(world, front):
    """The session is not asked to carry the call out."""
    if front not in QUICK:
        pytest.skip("this front end has no quick way")

    def body(here):
        how = {"prescale_factor": 2.0}  # With it, earlier tests have kept no call.
        _known_names(here, **how)
        hvd, session = here.hvd, basics.current()
        carry_out = session.carry_out_once
        session.carry_out_once = None
        try:
            for value in range(10):
                result = hvd.allreduce(here.tensor([float(value)]), op=hvd.Sum, **how)
                assert here.number(result) == 2 * value * hvd.size()
        finally:
            session.carry_out_once = carry_out

    world.run(body)

"""Options of requests: from names and values to what the engine reads."""

from __future__ import annotations

import ctypes

import pytest

from farandole.base.request_kind import Kind
from farandole.base.settings.table import Settings
from farandole.worker.core import binding
from farandole.worker.core.dtype import DType, Max, Sum
from farandole.worker.core.engine import Engine
from farandole.worker.core.request import make_request
from farandole.worker.core.request_options import native_options, reader_of
from farandole.worker.core.submission import Submission


def shown(native):
    return [(each.name.decode(), str(each.value)) for each in native.array]


def test_equal_numbers_may_be_different_values():
    read = reader_of(("op", "prescale"))
    assert shown(read({"op": Sum, "prescale": 0.0})) == [("op", "1.0"), ("prescale", "0.0")]
    assert shown(read({"op": Sum, "prescale": -0.0})) == [("op", "1.0"), ("prescale", "-0.0")]
    assert read({"op": Sum, "prescale": 1}) is read({"prescale": 1.0, "op": Sum})


def test_a_reader_takes_its_own_names():
    given = {"op": Max, "prescale": 1.0, "postscale": 2.0}
    assert shown(reader_of(("postscale", "op"))(given)) == [("postscale", "2.0"), ("op", f"{float(Max)}")]
    assert shown(native_options(given)) == [(name, f"{float(value)}") for name, value in given.items()]
    with pytest.raises(KeyError):
        reader_of(("op",))({})


def test_requests_that_are_submitted_together_may_have_options_of_their_own():
    # Two in a row share theirs, which the engine then reads once; the next ones have others.
    engine = Engine(binding.load(), Settings())
    engine.form(1, 0, 1, (), b"secret", 10.0)
    try:
        factors = [2.0, 2.0, 3.0, 2.0]
        numbers = [(ctypes.c_float * 1)(1) for _ in factors]
        requests = [
            make_request(
                Kind.ALLREDUCE,
                f"x{index}",
                dtype=DType.F32,
                shape=(1,),
                input=ctypes.addressof(number),
                output=ctypes.addressof(number),
                op=Sum,
                prescale=factor,
            )
            for index, (factor, number) in enumerate(zip(factors, numbers, strict=True))
        ]
        broadcast = make_request(
            Kind.BROADCAST,
            "y",
            dtype=DType.F32,
            shape=(1,),
            input=ctypes.addressof(numbers[0]),
            output=ctypes.addressof(numbers[0]),
            root=0,
        )
        submission = Submission((*requests, broadcast))
        engine.run(submission)
        engine.release(submission)
        assert [number[0] for number in numbers] == factors
    finally:
        engine.leave(10.0)

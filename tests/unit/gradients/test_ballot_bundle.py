"""A ballot as a gradient of each element type."""

from __future__ import annotations

import ctypes
import struct
from types import SimpleNamespace

import pytest

from farandole.worker.core.dtype import Average, DType, Max, Min, Product, Sum
from farandole.worker.core.group import global_process_set
from farandole.worker.gradients.ballot_bundle import BallotBundle
from farandole.worker.gradients.reduce_options import ReduceOptions

SESSION = SimpleNamespace(group_of=lambda process_set, operation: 0)
CODES = {DType.F16: "e", DType.F32: "f", DType.F64: "d"}


def ballot(dtype, op):
    return BallotBundle("ballot", dtype, ReduceOptions(op, 1.0, 1.0, global_process_set))


def travel(bundle, change):
    """Reduce what the ballot has, by changing its values so."""
    (request,) = bundle.submission.requests
    dtype = DType(request.dtype)
    values = read(request.input, dtype, request.shape[0])
    write(request.output, dtype, [change(value) for value in values])


def read(address, dtype, count):
    if dtype == DType.BF16:
        words = (ctypes.c_uint16 * count).from_address(address)
        return [struct.unpack("<f", struct.pack("<I", word << 16))[0] for word in words]
    code = f"={count}{CODES[dtype]}"
    return struct.unpack(code, ctypes.string_at(address, struct.calcsize(code)))


def write(address, dtype, values):
    if dtype == DType.BF16:
        words = [struct.unpack("<I", struct.pack("<f", value))[0] >> 16 for value in values]
        data = struct.pack(f"={len(values)}H", *words)
    else:
        data = struct.pack(f"={len(values)}{CODES[dtype]}", *values)
    ctypes.memmove(address, data, len(data))


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16, DType.F32, DType.F64])
@pytest.mark.parametrize("op", [Average, Sum, Min, Max, Product])
def test_ballot_has_the_requests_of_every_rank(dtype, op):
    bundle = ballot(dtype, op)
    for asked in ([True, False, True], [False, False, False], [True, True, False]):
        bundle.fill_in(SESSION, asked)
        assert read(bundle.submission.requests[0].input, dtype, 3) == pytest.approx(
            [float(each) if op not in (Min, Product) else float(not each) for each in asked]
        )
        travel(bundle, lambda value: value)
        assert bundle.outcome == asked


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16, DType.F32])
def test_request_of_one_rank_of_many_survives_an_average(dtype):
    bundle = ballot(dtype, Average)
    bundle.fill_in(SESSION, [True, False])
    travel(bundle, lambda value: value / 4096)
    assert bundle.outcome == [True, False]


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16, DType.F32, DType.F64])
def test_negative_zero_is_no_request(dtype):
    bundle = ballot(dtype, Sum)
    bundle.fill_in(SESSION, [False])
    travel(bundle, lambda value: -0.0)
    assert bundle.outcome == [False]


def test_ballot_beside_other_types_than_floats_is_float32():
    for dtype in (DType.I64, None):
        bundle = ballot(dtype, Sum)
        bundle.fill_in(SESSION, [True])
        assert bundle.submission.requests[0].dtype == DType.F32

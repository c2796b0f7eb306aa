from __future__ import annotations

import ctypes

import pytest

from farandole.base.request_kind import Kind
from farandole.worker.core import request_options
from farandole.worker.core.binding import NativeRequest
from farandole.worker.core.dtype import DType, Sum
from farandole.worker.core.request import make_request
from farandole.worker.core.request_options import native_options
from farandole.worker.core.submission import Series, Submission, SubmissionPool

OPTIONS = {"op": Sum, "root": -1, "prescale": 0.5, "postscale": -0.0}


def options_of(request):
    """Return name and value of each option, as texts: -0.0 is another value than 0.0."""
    return [(name, str(value)) for name, value in request_options.options_of(request).items()]


def fields(request):
    return (
        request.kind,
        request.dtype,
        request.group,
        request.shape[: request.ndim],
        options_of(request),
        request.name,
        request.input,
        request.output,
    )


def fill(single, name, shape):
    single.fill(Kind.BROADCAST, DType.F64, 3, shape, name, 64, 128, native_options(OPTIONS))


@pytest.mark.parametrize("name", [b"x", b"long" * 100, "Grüße".encode()])
@pytest.mark.parametrize("shape", [(), (7,), (1,) * 11, (2**40, 0)])
def test_a_single_is_what_make_request_makes(name, shape):
    pool = SubmissionPool()
    single = pool.single(name, shape)
    fill(single, name, shape)
    expected = make_request(
        Kind.BROADCAST,
        name.decode(),
        dtype=DType.F64,
        group=3,
        shape=shape,
        input=64,
        output=128,
        **OPTIONS,
    )
    assert fields(single.requests[0]) == fields(expected)
    rest = NativeRequest.splits.offset
    assert bytes(single.requests)[rest:] == bytes(expected)[rest:]  # What is not written is as in a new request.


def test_a_single_is_used_again_and_nothing_of_before_is_left():
    pool = SubmissionPool()
    first = pool.single(b"a long name", (1, 2, 3))
    fill(first, b"a long name", (1, 2, 3))
    first.put_back()
    again = pool.single(b"b", (9,))
    assert again is first and pool.single(b"b", (9,)) is not first
    fill(again, b"b", (9,))
    assert again.requests[0].name == b"b" and again.requests[0].shape[: again.requests[0].ndim] == [9]


def requests():
    return [make_request(Kind.ALLREDUCE, "", dtype=dtype, shape=(size,)) for dtype, size in ((DType.F32, 2), (1, 3))]


def test_a_series_writes_columns():
    series = SubmissionPool().series("key", requests)
    for head in ("a", "a rather longer head", "ä", "b"):
        series.name(head)
        assert [request.name.decode() for request in series.requests] == [f"{head}_1of2", f"{head}_2of2"]
    for prescale in (0.0, 0.25):
        series.ask_for(native_options({"op": Sum, "prescale": prescale, "postscale": -0.0}))
    series.place([8, 16], [24, 32])
    expected = [("op", "1.0"), ("prescale", "0.25"), ("postscale", "-0.0")]
    assert [options_of(request) for request in series.requests] == [expected] * 2
    assert [(each.input, each.output) for each in series.requests] == [(8, 24), (16, 32)]
    assert [(each.dtype, each.shape[: each.ndim]) for each in series.requests] == [(DType.F32, [2]), (1, [3])]


def test_a_pool_keeps_series_by_key_and_not_without_end():
    pool = SubmissionPool()
    first = pool.series("one", requests)
    assert isinstance(first, Series) and pool.series("one", requests) is not first
    first.put_back()
    other = pool.series("two", requests)
    assert other is not first and pool.series("one", requests) is first
    for number in range(pool.MOST_IN_SERIES):
        pool.series(number, requests).put_back()
    assert sum(len(kept) for kept in pool._series.values()) <= pool.MOST_IN_SERIES / 2


def test_joined():
    parts = [Submission(requests()), Submission(requests()[:1])]
    whole = Submission.joined(parts)
    assert whole.count == 3 and not whole.submitted
    assert bytes(whole.requests) == b"".join(map(bytes, (part.requests for part in parts)))
    assert len(whole.handles) == 3 and ctypes.sizeof(whole.requests) == 3 * ctypes.sizeof(parts[0].requests[0])


def test_requests_of_a_pool_are_not_in_turn_for_their_next_call():
    pool = SubmissionPool()
    single = pool.single(b"x", (1,))
    series = pool.series("key", lambda: [make_request(Kind.BARRIER, "x")] * 3)
    for submission in (single, series):
        submission.make_in_turn()
        assert all(request.in_turn == 1 for request in submission.requests)
        submission.put_back()
    assert pool.single(b"x", (1,)) is single and pool.series("key", list) is series
    for submission in (single, series):
        assert all(request.in_turn == 0 for request in submission.requests)

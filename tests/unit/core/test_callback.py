"""Completion callbacks through ctypes, as an adapter of a framework would use them: a world of one is enough."""

from __future__ import annotations

import ctypes
import threading

import pytest

from farandole.base.request_kind import Kind
from farandole.base.settings.table import Settings
from farandole.errors import FarandoleError
from farandole.worker.core import binding
from farandole.worker.core.dtype import DType
from farandole.worker.core.engine import Engine
from farandole.worker.core.request import make_request
from farandole.worker.core.status import Status
from farandole.worker.core.submission import Submission


class Calls:
    """What callbacks were told, and by which threads."""

    def __init__(self):
        self.told = []
        self.threads = []
        self.arrived = threading.Semaphore(0)
        self.function = binding.Callback(self._note)

    def _note(self, context, handle, status, error, lost_rank):
        self.told.append((context, handle, Status(status), error.decode(), lost_rank))
        self.threads.append(threading.get_ident())
        self.arrived.release()


@pytest.fixture
def engine():
    engine = Engine(binding.load(), Settings())
    engine.form(1, 0, 1, (), b"secret", 10.0)
    yield engine
    engine.leave(10.0)


def allreduce(calls, name, values, context=None, **options):
    request = make_request(
        Kind.ALLREDUCE,
        name,
        dtype=DType.F32,
        shape=(len(values),),
        input=ctypes.addressof(values),
        output=ctypes.addressof(values),
        **options,
    )
    request.callback = calls.function
    request.callback_context = context
    return Submission((request,))


def test_it_tells_the_result_of_each_request_once(engine):
    calls = Calls()
    values = (ctypes.c_float * 3)(1, 2, 3)
    for step in range(20):
        submission = allreduce(calls, "x", values, context=step + 1)
        engine.submit(submission)
        assert calls.arrived.acquire(timeout=60)
        assert calls.told[-1] == (step + 1, submission.handles[0], Status.OK, "", -1)
        assert engine.done(submission)
        engine.release(submission)
    assert len(calls.told) == 20


def test_what_was_submitted_when_the_engine_left_has_been_told(engine):
    calls = Calls()
    values = (ctypes.c_float * 1)(1)
    submission = allreduce(calls, "x", values)
    engine.submit(submission)
    engine.leave(10.0)
    assert len(calls.told) == 1


def test_what_is_refused_is_not_told(engine):
    calls = Calls()
    values = (ctypes.c_float * 1)(1)
    submission = allreduce(calls, "x", values)
    submission.requests[0].group = 7
    with pytest.raises(FarandoleError, match="process set provided does not exist"):
        engine.submit(submission)
    assert calls.told == []


def test_host_memory_is_refused_as_device_memory(engine):
    """Without a driver because there is none, and with one because the driver does not know the address."""
    submission = allreduce(Calls(), "x", (ctypes.c_float * 1)(1), memory=1)
    with pytest.raises(FarandoleError, match="driver"):
        engine.submit(submission)

"""Waiting: Ctrl-C, and requests whose inputs are not ready yet."""

from __future__ import annotations

import signal
import threading

import torch
from worlds import wait_until

import farandole.torch as hvd


def test_ctrl_c_interrupts_a_wait(worlds):
    """The wait ends, the request does not: it can still be synchronized, and its tensors live."""

    def body():
        import os

        if hvd.rank() == 1:
            hvd.barrier()
            return float(hvd.allreduce(torch.ones(1000), name="interrupted", op=hvd.Sum)[0])
        handle = hvd.allreduce_async(torch.ones(1000), name="interrupted", op=hvd.Sum)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
        try:
            timer.start()
            hvd.synchronize(handle)
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("the wait was not interrupted")
        timer.join()
        hvd.barrier()
        return float(hvd.synchronize(handle)[0])

    assert worlds.run(2, body) == [2.0, 2.0]


def test_ctrl_c_in_a_synchronous_call_keeps_its_tensors(worlds):
    """Nobody holds them any more but the engine, which still writes the output when the other rank comes."""

    def body():
        import os

        from farandole.worker.core.basics import current

        if hvd.rank() == 1:
            hvd.barrier()
            total = hvd.allreduce(torch.ones(100_000), name="held", op=hvd.Sum)
            hvd.barrier()
            return float(total.sum())
        signal.signal(signal.SIGINT, signal.default_int_handler)
        calls = current().handles._calls
        before = len(calls)
        while len(calls) == before:  # The thread that was held up has been interrupted before the call was made.
            timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
            try:
                timer.start()
                hvd.allreduce(torch.ones(100_000), name="held", op=hvd.Sum)
            except KeyboardInterrupt:
                pass
            else:
                raise AssertionError("the wait was not interrupted")
            timer.join()
        others = [torch.full((100_000,), 7.0) for _ in range(50)]  # They would get the memory, were it free.
        hvd.barrier()
        hvd.barrier()
        assert all(bool((other == 7.0).all()) for other in others)
        return 200_000.0

    assert worlds.run(2, body) == [200_000.0, 200_000.0]


class Later:
    """Stands for a CUDA event: something that happens when the test says so."""

    def __init__(self):
        self.happened = threading.Event()

    def synchronize(self):
        self.happened.wait(30)


def test_inputs_that_are_not_ready(worlds):
    """The call returns at once, is submitted when its input is ready, and errors come out where it is waited for."""

    def body():
        from farandole.torch.staging import call_of
        from farandole.worker.core.basics import current
        from farandole.worker.core.dtype import DType, Kind
        from farandole.worker.core.request import make_request

        session = current()
        event = Later()
        tensor = torch.zeros(4)

        def begin(name, root):
            address = tensor.data_ptr()
            request = make_request(
                Kind.BROADCAST, name, dtype=DType.F32, root=root, shape=(4,), input=address, output=address
            )
            return session.handles.begin(call_of(session, (request,), (event, None), lambda _: tensor))

        handle = begin("late", 0)
        wrong = begin("wrong", 5)
        assert not hvd.poll(handle)
        tensor.fill_(hvd.rank() + 3)
        event.happened.set()
        assert hvd.synchronize(handle).tolist() == [3.0] * 4
        wait_until(lambda: hvd.poll(wrong))
        try:
            hvd.synchronize(wrong)
        except ValueError as error:
            assert "root" in str(error)
        else:
            raise AssertionError("a wrong root went through")

    worlds.run(2, body)


def test_shutdown_while_an_input_is_not_ready(worlds):
    """The submission that comes too late fails for itself and holds up nothing."""

    def body():
        from farandole.torch.staging import call_of
        from farandole.worker.core.basics import current
        from farandole.worker.core.dtype import Kind
        from farandole.worker.core.request import make_request

        session = current()
        event = Later()
        session.handles.begin(call_of(session, (make_request(Kind.BARRIER, "late"),), (event,), lambda _: None))
        timer = threading.Timer(0.05, event.happened.set)
        timer.start()
        hvd.shutdown()
        timer.join()
        hvd.init()
        hvd.barrier()

    worlds.run(2, body)

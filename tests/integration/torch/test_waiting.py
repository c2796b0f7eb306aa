"""Ctrl-C while waiting, and the outcome of the request."""

from __future__ import annotations

import signal
import threading

import torch

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
        interrupted = current().handles._interrupted
        while not interrupted:  # The thread that was held up has been interrupted before the call was made.
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

"""Collectives on plain buffers: right values, arguments that are refused, and no framework."""

from __future__ import annotations

import subprocess
import sys
from array import array

import pytest

from farandole.base.request_kind import Kind
from farandole.errors import MismatchError
from farandole.worker.core import buffers
from farandole.worker.core.dtype import DType, Max, Sum

pytestmark = pytest.mark.once


def test_every_collective(world):
    def body(front):
        rank, size = front.hvd.rank(), front.hvd.size()
        data = array("f", [rank + 1.0] * 5)
        buffers.allreduce(data)
        assert data.tolist() == [(size + 1) / 2] * 5
        halves = bytearray(b"\x80\x3f" * (rank + 1 == size) + b"\x00\x00" * (rank + 1 < size))
        buffers.allreduce(halves, DType.BF16, Max)
        assert halves == b"\x80\x3f"  # 1.0
        lent = buffers.zeros(10)
        lent[:] = bytes([rank + 1]) * 10
        buffers.collective(Kind.BROADCAST, lent, root_rank=size - 1)
        assert lent == bytes([size]) * 10
        gathered = bytearray(3 * size)
        buffers.collective(Kind.ALLGATHER, bytearray([rank] * 3), gathered)
        assert list(gathered) == [each for each in range(size) for _ in range(3)]
        exchanged = bytearray(size)
        buffers.collective(Kind.ALLTOALL, bytearray(10 * rank + to for to in range(size)), exchanged)
        assert list(exchanged) == [10 * source + rank for source in range(size)]
        whole, more = divmod(7, size)
        own = array("d", bytes(8 * (whole + (rank < more))))
        begin = rank * whole + min(rank, more)
        buffers.collective(Kind.REDUCESCATTER, array("d", range(7)), own, op=Sum)
        assert own.tolist() == [size * float(each) for each in range(begin, begin + len(own))]
        rooted = array("i", [rank + 1] * 5)
        buffers.collective(Kind.REDUCE, rooted, op=Sum, root_rank=size - 1)
        assert set(rooted) == {size * (size + 1) // 2 if rank == size - 1 else rank + 1}
        buffers.allreduce(bytearray())
        buffers.barrier()

    world.run(body)


def test_several_at_once(world):
    def body(front):
        rank, size = front.hvd.rank(), front.hvd.size()
        data = [array("f", [rank + 1.0] * 5), array("d", [float(rank)]), array("i", [rank] * 1000)]
        buffers.grouped_allreduce(data, op=Sum)
        total = size * (size - 1) // 2
        assert [set(each) for each in data] == [{total + size}, {total}, {total}]

    world.run(body)


def test_parts_of_different_sizes(world):
    def body(front):
        rank, size = front.hvd.rank(), front.hvd.size()
        gathered, sizes = buffers.gather(bytearray([rank + 1]) * rank)
        assert sizes == tuple(range(size))
        assert gathered == b"".join(bytes([source + 1]) * source for source in range(size))
        # Rank r gives r + 2t bytes to rank t, and keeps one to itself.
        given = [rank + 2 * to for to in range(size)]
        parts = bytearray().join(bytes([10 * rank + to]) * count for to, count in enumerate(given))
        received, sizes = buffers.exchange(parts + b"!", given)
        assert sizes == tuple(source + 2 * rank for source in range(size))
        assert received == b"".join(bytes([10 * source + rank]) * count for source, count in enumerate(sizes))

    world.run(body)


def test_transfers(world):
    """There and back again, and on to the next rank."""
    if world.size == 1:
        pytest.skip("one rank has nobody to send to")

    def body(front):
        rank, size = front.hvd.rank(), front.hvd.size()
        if rank < 2:
            sent, returned = (bytearray([fill if rank == at else 0]) * 3 for fill, at in ((7, 0), (8, 1)))
            buffers.transfer([(sent, 0, 1), (returned, 1, 0)], name="pair")
            assert (sent, returned) == (b"\7" * 3, b"\10" * 3)
        own, other = bytearray([rank]), bytearray(1)
        moves = [(own, rank, (rank + 1) % size), (other, (rank - 1) % size, rank)]
        buffers.transfer(moves, name="ring")
        assert list(other) == [(rank - 1) % size]

    world.run(body)


def test_parts_that_are_not_equal(world):
    if world.size == 1:
        pytest.skip("one rank's part is equal to itself")

    def body(front):
        rank, size = front.hvd.rank(), front.hvd.size()
        try:
            buffers.collective(Kind.ALLGATHER, bytearray(rank + 1), bytearray((rank + 1) * size))
        except MismatchError as error:
            return str(error)
        raise AssertionError("unequal parts went through")

    assert all("differ in size" in text for text in world.run(body))


def test_refused(world):
    """The wrong calls of one rank are not noticed by the others, whose next unnamed calls still match."""

    def body(front):
        if front.hvd.rank() == 0:
            for wrong, words in (
                (lambda: buffers.allreduce(b"read-only"), "writable"),
                (lambda: buffers.allreduce(memoryview(bytearray(8))[::2]), "contiguous"),
                (lambda: buffers.allreduce(memoryview(bytearray(8)).cast("N")), "element type"),
                (lambda: buffers.allreduce(bytearray(6), DType.F32), "whole number"),
                (
                    lambda: buffers.collective(Kind.ALLGATHER, bytearray(2), bytearray(2 * front.hvd.size() + 1)),
                    "needs",
                ),
                (lambda: buffers.collective(Kind.ALLREDUCE, bytearray(2), bytearray(1)), "needs"),
                (lambda: buffers.allreduce(bytearray(4), DType.F32, op=9), "reduction"),
                (lambda: buffers.collective(Kind.BROADCAST, bytearray(4), root_rank=99), "root"),
                (lambda: buffers.exchange(bytearray(4), [5] * front.hvd.size()), "splits"),
                (lambda: buffers.transfer([(bytearray(4), 0, 0)], name="to itself"), "transfer"),
            ):
                try:
                    wrong()
                except ValueError as error:
                    assert words in str(error), error
                else:
                    raise AssertionError(f"{words} went through")
        data = array("i", [1])
        buffers.allreduce(data, op=Sum)
        assert data[0] == front.hvd.size()

    world.run(body)


def test_no_framework():
    """Importing and using them alone loads neither a framework nor NumPy, nor what makes a start slow."""
    script = """
import sys
from farandole.worker.core import basics, buffers
basics.init()
buffers.allreduce(bytearray(4))
assert not {"torch", "numpy", "asyncio", "logging"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)

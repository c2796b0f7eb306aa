"""The workers' output that an agent keeps for the next launcher."""

from __future__ import annotations

from farandole.control.agent.failover import SPOOL_BYTES, Spool, UnwrittenOutput
from farandole.control.agent.protocol import STDERR, STDOUT, Closed, Credit, Output


def test_written_output_is_dropped_exactly() -> None:
    unwritten = UnwrittenOutput()
    for data in (b"one ", b"two ", b"three"):
        unwritten.sent(Output(0, STDOUT, data))
    unwritten.written(Credit(0, STDOUT, 6))
    assert unwritten.pop_all() == [Output(0, STDOUT, b"o "), Output(0, STDOUT, b"three")]
    assert unwritten.pop_all() == []


def test_unwritten_output_is_returned_in_sending_order() -> None:
    unwritten = UnwrittenOutput()
    said = [Output(1, STDOUT, b"a"), Output(0, STDERR, b"b"), Output(1, STDERR, b"c"), Output(1, STDOUT, b"d")]
    for message in said:
        unwritten.sent(message)
    assert unwritten.pop_all() == said


def test_end_of_stream_is_repeated_with_its_last_bytes() -> None:
    unwritten = UnwrittenOutput()
    unwritten.sent(Output(0, STDOUT, b"last words"))
    unwritten.sent(Closed(0, STDOUT))
    unwritten.written(Credit(0, STDOUT, 5))
    assert unwritten.pop_all() == [Output(0, STDOUT, b"words"), Closed(0, STDOUT)]


def test_completely_written_stream_is_forgotten() -> None:
    unwritten = UnwrittenOutput()
    unwritten.sent(Output(0, STDOUT, b"last words"))
    unwritten.sent(Closed(0, STDOUT))
    unwritten.written(Credit(0, STDOUT, 10))
    unwritten.sent(Closed(0, STDERR))
    assert unwritten.pop_all() == []


def test_credit_for_unknown_output_is_ignored() -> None:
    unwritten = UnwrittenOutput()
    unwritten.written(Credit(0, STDOUT, 3))
    unwritten.sent(Output(0, STDOUT, b"new"))
    assert unwritten.pop_all() == [Output(0, STDOUT, b"new")]


def test_spool_keeps_latest_output() -> None:
    spool = Spool()
    for number in range(5):
        spool.add(Output(number, STDOUT, bytes(SPOOL_BYTES // 4)))
    spool.add(Closed(4, STDOUT))
    assert spool.lost == SPOOL_BYTES // 4
    assert spool.closed == [(4, STDOUT)]
    assert [message.rank for message in spool.pop_all()] == [1, 2, 3, 4, 4]

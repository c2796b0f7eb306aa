"""What an agent keeps for the next launcher of what its workers have printed."""

from __future__ import annotations

from farandole.control.agent.failover import SPOOL_BYTES, Spool, UnwrittenOutput
from farandole.control.agent.protocol import STDERR, STDOUT, Closed, Credit, Output


def test_what_was_written_is_forgotten_to_the_byte() -> None:
    unwritten = UnwrittenOutput()
    for data in (b"one ", b"two ", b"three"):
        unwritten.sent(Output(0, STDOUT, data))
    unwritten.written(Credit(0, STDOUT, 6))
    assert unwritten.take() == [Output(0, STDOUT, b"o "), Output(0, STDOUT, b"three")]
    assert unwritten.take() == []


def test_streams_come_back_in_the_order_in_which_they_were_sent() -> None:
    unwritten = UnwrittenOutput()
    said = [Output(1, STDOUT, b"a"), Output(0, STDERR, b"b"), Output(1, STDERR, b"c"), Output(1, STDOUT, b"d")]
    for message in said:
        unwritten.sent(message)
    assert unwritten.take() == said


def test_the_end_of_a_stream_is_told_again_with_its_last_bytes() -> None:
    unwritten = UnwrittenOutput()
    unwritten.sent(Output(0, STDOUT, b"last words"))
    unwritten.sent(Closed(0, STDOUT))
    unwritten.written(Credit(0, STDOUT, 5))
    assert unwritten.take() == [Output(0, STDOUT, b"words"), Closed(0, STDOUT)]


def test_a_stream_that_was_written_to_its_end_is_forgotten() -> None:
    unwritten = UnwrittenOutput()
    unwritten.sent(Output(0, STDOUT, b"last words"))
    unwritten.sent(Closed(0, STDOUT))
    unwritten.written(Credit(0, STDOUT, 10))
    unwritten.sent(Closed(0, STDERR))
    assert unwritten.take() == []


def test_credit_for_what_is_not_kept_is_passed_over() -> None:
    unwritten = UnwrittenOutput()
    unwritten.written(Credit(0, STDOUT, 3))
    unwritten.sent(Output(0, STDOUT, b"new"))
    assert unwritten.take() == [Output(0, STDOUT, b"new")]


def test_of_too_much_the_latest_is_kept() -> None:
    spool = Spool()
    for number in range(5):
        spool.add(Output(number, STDOUT, bytes(SPOOL_BYTES // 4)))
    spool.add(Closed(4, STDOUT))
    assert spool.lost == SPOOL_BYTES // 4
    assert spool.closed == [(4, STDOUT)]
    assert [message.rank for message in spool.take()] == [1, 2, 3, 4, 4]

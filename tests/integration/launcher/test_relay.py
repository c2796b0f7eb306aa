"""The relay between the workers of a host and the roster: what several frames end with is sent to an agent once."""

from __future__ import annotations

import asyncio
import random

import pytest
from agent_workers import Workers, with_agent

from farandole.base.wire.address import parse_address
from farandole.base.wire.frames import frame
from farandole.control.agent.protocol import Relayed, RelayedAgain, ToAgent
from farandole.control.launcher.agents.relayed_links import LatestEnd

TABLE = random.Random(1).randbytes(200_000)
OTHER_TABLE = random.Random(2).randbytes(300_000)
LONG = random.Random(3).randbytes(5 * 1024 * 1024)


def relayed(payloads: list[bytes], monkeypatch: pytest.MonkeyPatch) -> list[Relayed | RelayedAgain]:
    """Send a frame to each of several workers of one host, and return what the agent got for them.

    Checks that each worker gets its frame.
    """
    sent: list[Relayed | RelayedAgain] = []

    async def work(workers: Workers) -> None:
        agent, send = workers.agent, workers.agent.send

        def count(message: ToAgent) -> None:
            if isinstance(message, Relayed | RelayedAgain):
                sent.append(message)
            send(message)

        monkeypatch.setattr(agent, "send", count)
        roster = await _roster(payloads)
        host, port = roster.sockets[0].getsockname()
        agent.relay_to(f"{host}:{port}", LatestEnd())
        assert agent.facts is not None
        for payload in payloads:
            assert await _received(agent.facts.roster) == frame(payload)
        roster.close()

    with_agent(work)
    return sent


async def _roster(payloads: list[bytes]) -> asyncio.Server:
    left = list(payloads)

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(left.pop(0)))
        await writer.drain()
        writer.close()

    return await asyncio.start_server(answer, "127.0.0.1", 0)


async def _received(address: str) -> bytes:
    reader, writer = await asyncio.open_connection(*parse_address(address))
    try:
        return await asyncio.wait_for(reader.read(-1), 60)
    finally:
        writer.close()


def test_table_that_all_workers_of_a_host_get_is_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two worlds; what precedes a table has different lengths.
    sent = relayed([b"rank 9" + TABLE, b"rank 10" + TABLE, b"rank 11" + TABLE, b"1" + OTHER_TABLE], monkeypatch)
    assert [type(each) for each in sent] == [Relayed, RelayedAgain, RelayedAgain, Relayed]
    assert sum(len(each.data) for each in sent) < len(TABLE) + len(OTHER_TABLE) + 4 * 1024


def test_short_frames_between_long_ones_do_not_change_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = relayed([b"1" + TABLE, b"short", b"", b"2" + TABLE], monkeypatch)
    assert [type(each) for each in sent] == [Relayed, Relayed, Relayed, RelayedAgain]


def test_very_long_frames_are_sent_in_pieces_and_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = relayed([LONG, LONG, b"1" + TABLE, LONG, b"2" + TABLE], monkeypatch)
    assert [each for each in sent if isinstance(each, RelayedAgain)] == sent[-1:]
    assert max(len(each.data) for each in sent) < len(LONG)

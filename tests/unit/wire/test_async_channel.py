"""Frames over asyncio streams."""

from __future__ import annotations

import asyncio
import socket

import pytest

from farandole.base.wire.async_channel import AsyncChannel
from farandole.base.wire.errors import ConnectionLost


def test_frames_to_a_lost_connection_are_dropped_without_warnings(caplog: pytest.LogCaptureFixture) -> None:
    """asyncio warns of each write but the first ones; a launcher had a line of output for each."""

    async def run() -> None:
        here, there = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=here)
        channel = AsyncChannel(reader, writer)
        there.close()
        # All in one turn of the loop, in which no end of the connection is read.
        for _ in range(100):
            channel.post(b"news")
        assert channel.is_closing()
        with pytest.raises(ConnectionLost):
            await channel.receive()
        await channel.closed()

    asyncio.run(asyncio.wait_for(run(), 60))
    assert [each.getMessage() for each in caplog.records if each.name == "asyncio"] == []

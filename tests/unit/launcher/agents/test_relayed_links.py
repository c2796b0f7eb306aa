"""What the launcher sends an agent for the frames of its workers."""

from __future__ import annotations

import asyncio
import random
import tracemalloc

from farandole.base.wire.frames import frame
from farandole.control.agent.protocol import WINDOW, RelayClosed, Relayed, RelayedAgain, RelayOpened, ToAgent
from farandole.control.launcher.agents.relayed_links import KeptEnd, LatestEnd, RelayedLinks

TABLE = random.Random(1).randbytes(4 * 1024)


def test_common_end_is_found_whatever_its_length() -> None:
    for length in range(2 * 1024, 3 * 1024):
        kept = KeptEnd(LatestEnd())
        messages = [kept.message(1, b"the numbers of worker %d; " % worker + TABLE[:length]) for worker in range(3)]
        assert [type(each) for each in messages] == [Relayed, RelayedAgain, RelayedAgain], length


def test_agents_share_one_copy_of_the_table_that_they_keep() -> None:
    latest = LatestEnd()
    agents = [KeptEnd(latest) for _ in range(32)]
    tracemalloc.start()
    try:
        for table in (TABLE * 256, TABLE[::-1] * 256):
            for agent in agents:
                assert isinstance(agent.message(1, b"the numbers of worker 1; " + table), Relayed)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 3 * 256 * len(TABLE)


def test_frame_that_is_too_short_to_have_an_end_is_sent_whole() -> None:
    kept = KeptEnd(LatestEnd())
    for short in (b"", b"x" * 4, TABLE[:1000], TABLE[:1000]):
        assert kept.message(3, short) == Relayed(3, short)


def test_connection_ends_although_its_worker_has_not_read_a_long_frame() -> None:
    async def run() -> list[ToAgent]:
        sent: asyncio.Queue[ToAgent] = asyncio.Queue()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(frame(bytes(WINDOW)))
            await reader.read()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        links = RelayedLinks("{}:{}".format(*server.sockets[0].getsockname()), sent.put_nowait, LatestEnd())
        links.handle(RelayOpened(1))
        table = await sent.get()
        links.handle(RelayClosed(1))
        end = await sent.get()
        await links.close()
        server.close()
        return [table, end]

    table, end = asyncio.run(asyncio.wait_for(run(), 60))
    assert isinstance(table, Relayed)
    assert end == RelayClosed(1)

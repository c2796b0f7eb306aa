"""The roster's listener."""

from __future__ import annotations

import asyncio
import socket
import struct
from pathlib import Path

from farandole.base.wire.rendezvous import FromWorker
from farandole.control.roster.listener import Client, Listener


def test_has_room_for_all_workers_that_connect_at_once() -> None:
    async def heard(client: Client, message: FromWorker) -> None:
        raise AssertionError("no client connects")

    async def room() -> int:
        listener = Listener(b"secret", heard, lambda client: None, lambda line: None, 1024, 10.0)
        await listener.open("127.0.0.1", 0)
        try:
            # Of a listening socket, Linux reports the length of its queue as tcpi_sacked.
            info = listener._servers[0].sockets[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
            return int(struct.unpack_from("I", info, 28)[0])
        finally:
            await listener.close()

    most = int(Path("/proc/sys/net/core/somaxconn").read_text())
    assert asyncio.run(room()) == min(4096, most)

"""The roster's port, which the successor of a killed launcher needs again: another process may have taken it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable

from farandole.base.wire.address import parse_address

# What has it by chance, such as the near end of a connection, often lets go of it soon; workers look for it longer.
PORT_SECONDS = 30.0
_REST_SECONDS = 0.1


class PortLost(Exception):
    """It cannot be listened at: most likely another process has it, and keeps it."""


async def listen_again(
    listen: Callable[[], Awaitable[object]], address: str, say: Callable[[str], None], wanted: Callable[[], bool]
) -> None:
    """Listen where a launcher before did; do not wait for it when that is not wanted any more.

    Args:
        listen: raises OSError as long as it cannot be.
        address: host:port.
        say: tells people.
        wanted: whether the job goes on.

    Raises:
        PortLost: it could not be within `PORT_SECONDS`.
    """
    port = parse_address(address)[1]
    deadline = time.monotonic() + PORT_SECONDS
    told = False
    while True:
        try:
            await listen()
            return
        except OSError as error:
            if not wanted():
                return
            why = str(error) if error.errno is None else os.strerror(error.errno)  # asyncio's own is a whole sentence.
        if time.monotonic() > deadline:
            raise PortLost(
                f"workers look for the roster at port {port}, which the launcher that has taken over could not get "
                f"within {PORT_SECONDS:g} s ({why})"
            )
        if not told:
            say(
                f"warning: port {port}, at which workers look for the roster, cannot be had again yet ({why}); "
                f"waiting for it, for {PORT_SECONDS:g} s at most"
            )
            told = True
        await asyncio.sleep(_REST_SECONDS)

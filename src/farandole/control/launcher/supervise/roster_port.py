"""The roster's port, on which the successor of a killed launcher must listen again: another process may use it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable

from farandole.base.wire.address import parse_address

# Seconds: an accidental owner, such as the local end of a connection, often releases it soon; workers look longer.
PORT_SECONDS = 30.0
_REST_SECONDS = 0.1


class PortLost(Exception):
    """The port cannot be used: most likely, another process listens on it."""


async def listen_again(
    listen: Callable[[], Awaitable[object]], address: str, say: Callable[[str], None], wanted: Callable[[], bool]
) -> None:
    """Listen on the port of an earlier launcher, unless the job no longer needs that.

    Args:
        listen: starts to listen; raises OSError while that is not possible.
        address: host:port.
        say: prints a message for people.
        wanted: returns whether the job still needs the port.

    Raises:
        PortLost: the port was not free within `PORT_SECONDS` seconds.
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
            # asyncio's own text is a whole sentence.
            why = str(error) if error.errno is None else os.strerror(error.errno)
        if time.monotonic() > deadline:
            raise PortLost(
                f"workers look for the roster at port {port}, which the launcher that has taken over could not get "
                f"within {PORT_SECONDS:g} s ({why})"
            )
        if not told:
            say(
                f"warning: port {port}, at which workers look for the roster, is still in use ({why}); "
                f"waiting for it, {PORT_SECONDS:g} s at most"
            )
            told = True
        await asyncio.sleep(_REST_SECONDS)

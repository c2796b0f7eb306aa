"""Messages between the launcher and a host that dials it, before the agent's.

    dialer                              launcher
    (proof: the job's dial secret, see `handshake`)
    Hello       ->
                <-  Begin, Continue or Leave: at once, or when the launcher needs the host
    Bridged     ->
    from here on, all bytes are the agent's and the launcher's own (`farandole.control.agent.protocol`)

Nothing here does I/O.
"""

from __future__ import annotations

import msgspec

MOST_SLOTS = 4096
# A connection over which nothing comes is watched by the kernel, which notices within this number of seconds that the
# other side, or the way to it, is gone.
KEEPALIVE_SECONDS = 6


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """Who dials."""

    name: str
    """The host's name in messages."""
    slots: int
    version: str
    """Of farandole there."""
    lives: bool
    """Whether an agent lives there that has lost its launcher, and may have workers."""


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """Start an agent. For hosts on which none lives."""


class Continue(msgspec.Struct, frozen=True, tag="continue"):
    """Lead to the agent that waits at one of these sockets (see `farandole.control.agent.protocol.Outlive`)."""

    sockets: tuple[str, ...]


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """End the agent and its workers, and dial again: the job goes on without them."""

    why: str


Order = Begin | Continue | Leave


class Bridged(msgspec.Struct, frozen=True, tag="bridged"):
    """The agent's messages follow; or there is no agent, and this connection ends."""

    found: bool

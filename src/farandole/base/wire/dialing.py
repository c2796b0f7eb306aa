"""Messages between the launcher and a host that dials it, before the agent's.

    dialer                              launcher
    (handshake with the job's dial secret, see `handshake`)
    Hello       ->
                <-  Begin, Continue or Leave: at once, or when the launcher needs the host
    Bridged     ->
    from here on, the agent and the launcher use `farandole.control.agent.protocol`

Nothing here does I/O.
"""

from __future__ import annotations

import msgspec

MOST_SLOTS = 4096
# The kernel watches an idle connection, and detects within this number of seconds that the other side, or the route to
# it, is gone.
KEEPALIVE_SECONDS = 6


class Surroundings(msgspec.Struct, frozen=True):
    """The directory and the Python of workers, if the program that started the dialer determines them."""

    directory: str
    python: str
    """Path of the interpreter."""
    version: str
    """Its version without the patch level, such as `3.12`."""


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The dialing host identifies itself."""

    name: str
    """The host's name for messages."""
    slots: int
    version: str
    """Version of farandole on the host."""
    lives: bool
    """Whether an agent without a launcher is running there, which may have workers."""
    instance: str = ""
    """A random id of the dialing process: a second process with the same name waits until the first has ended."""
    machine: str = ""
    """The machine that the host is on, equal for two hosts that share one."""
    devices: tuple[str, ...] = ()
    """The GPUs that workers there may use, as for CUDA_VISIBLE_DEVICES; (): all, or none."""
    own: Surroundings | None = None
    """The workers' directory and Python; None: the launcher chooses them."""


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """Start an agent, on a host without one."""


class Continue(msgspec.Struct, frozen=True, tag="continue"):
    """Connect to the agent that waits at one of these sockets (see `farandole.control.agent.protocol.Outlive`)."""

    sockets: tuple[str, ...]


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """End the agent and its workers, and dial again: the job continues without them."""

    why: str


Order = Begin | Continue | Leave


class Bridged(msgspec.Struct, frozen=True, tag="bridged"):
    """The dialing host has connected the agent, or has none and closes the connection."""

    found: bool
    """Whether the agent's messages follow."""

"""The messages about connectivity: which hosts reach each other at which addresses (see `connectivity`)."""

from __future__ import annotations

import msgspec


class OpenPorts(msgspec.Struct, frozen=True, tag="open-ports"):
    """Listen on these addresses for the agents of other hosts, until the first worker starts.

    Answered by `PortsOpened`.
    """

    number: int
    addresses: tuple[str, ...]


class ConnectTarget(msgspec.Struct, frozen=True):
    """The addresses at which a host may be reached."""

    host: int
    """Its number in the answer."""
    address: str
    port: int
    token: bytes
    """The first bytes from the other side, which distinguish it from another machine with the same address."""


class TryConnect(msgspec.Struct, frozen=True, tag="try-connect"):
    """Try to reach other hosts, all at once. Answered by `ConnectTried` within `seconds`."""

    number: int
    targets: tuple[ConnectTarget, ...]
    seconds: float


class PortsOpened(msgspec.Struct, frozen=True, tag="ports-opened"):
    """The ports on which the agent listens."""

    number: int
    ports: tuple[int, ...]
    """One for each address; 0 if the agent cannot listen there."""
    token: bytes


class ConnectOutcome(msgspec.Struct, frozen=True):
    """The result of connecting to one target."""

    host: int
    address: str
    seconds: float
    """Seconds until the other side answered."""
    trouble: str
    """Why it did not answer; "" if it did."""


class ConnectTried(msgspec.Struct, frozen=True, tag="connect-tried"):
    """The results of connecting to all targets."""

    number: int
    answers: tuple[ConnectOutcome, ...]

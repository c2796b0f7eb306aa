"""A roster that may be at any of several addresses."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest
from running_roster import SECRET, Running

from farandole.base.wire.address import format_address
from farandole.base.wire.errors import AuthenticationFailed, ConnectionLost, WireTimeout
from farandole.base.wire.rendezvous import RosterUnreachable
from farandole.base.wire.roster_client import RosterClient


@pytest.fixture
def roster() -> Iterator[Running]:
    running = Running(1)
    yield running
    running.close()


@pytest.fixture
def silent() -> Iterator[str]:
    """Return the address of a server that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield format_address(*server.getsockname())


@pytest.fixture
def closed() -> str:
    """Return an address at which no process listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return format_address(*server.getsockname())


def connect(*addresses: str, secret: bytes = SECRET, timeout: float = 10) -> RosterClient:
    return RosterClient.connect(",".join(addresses), secret, worker=0, timeout=timeout)


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_address_with_authenticated_roster_is_used(roster: Running, silent: str, closed: str, place: int) -> None:
    # 198.51.100.0/24 is nobody's: packets to it are lost, or an error comes back.
    addresses = [silent, closed, "198.51.100.1:4711"]
    addresses.insert(place, roster.address)
    started = time.monotonic()
    with connect(*addresses) as client:
        assert client.join("me", 10).contacts == ("me",)
    assert time.monotonic() - started < 8


def test_roster_with_two_addresses_is_joined_once(roster: Running) -> None:
    with connect(roster.address, roster.address) as client:
        assert client.join("me", 10).size == 1


@pytest.mark.parametrize(
    ("which", "secret", "kind", "told"),
    [
        (("closed", "closed"), SECRET, ConnectionLost, "refused"),
        (("closed", "silent"), SECRET, WireTimeout, "refused.*did not answer in time"),
        (("roster", "closed", "silent"), b"other", AuthenticationFailed, "FARANDOLE_SECRET"),
    ],
    ids=["all closed", "one silent", "another secret"],
)
def test_error_names_all_failed_addresses(
    request: pytest.FixtureRequest, which: tuple[str, ...], secret: bytes, kind: type[Exception], told: str
) -> None:
    found = [request.getfixturevalue(name) for name in which]
    addresses = [each.address if isinstance(each, Running) else each for each in found]
    with pytest.raises(RosterUnreachable, match=told) as caught:
        # The roster has a thread to answer in, which may have to wait for a processor.
        connect(*addresses, secret=secret, timeout=3 if "roster" in which else 0.5)
    assert isinstance(caught.value.__cause__, kind)


def test_unknown_host_name_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*arguments: object, **options: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(RosterUnreachable, match=r"no connection to nowhere:1: Name or service not known"):
        connect("nowhere:1")

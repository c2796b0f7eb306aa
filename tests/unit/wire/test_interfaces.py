"""Which addresses are offered, in which order, and how one chooses among them. What the machine has is made up."""

from __future__ import annotations

import ipaddress

import pytest

from farandole.base.wire import interfaces
from farandole.base.wire.interfaces import Address, addresses
from farandole.errors import SettingError

MANAGEMENT = Address("eth0", "192.0.2.7", 24, 1000)
FAST = Address("ib0", "10.1.0.7", 16, 100_000)
FAST_6 = Address("ib0", "fd00::7", 64, 100_000)
BRIDGE = Address("docker0", "172.17.0.1", 16, 10_000)
LINK_LOCAL = Address("eth0", "fe80::1%eth0", 64, 1000)
UNKNOWN = Address("tun0", "10.2.0.1", 32, 0)
EVERYTHING = [BRIDGE, LINK_LOCAL, UNKNOWN, MANAGEMENT, FAST, FAST_6]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interfaces, "_running", lambda: iter(EVERYTHING))
    monkeypatch.setattr(interfaces, "_is_bridge", lambda interface: interface == "docker0")


@pytest.mark.usefixtures("machine")
def test_fastest_interfaces_come_first_and_bridges_last() -> None:
    assert addresses() == [FAST, FAST_6, MANAGEMENT, UNKNOWN, BRIDGE]


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("networks", "expected"),
    [
        (["ib0"], [FAST, FAST_6]),
        (["10.0.0.0/8"], [FAST, UNKNOWN]),
        (["10.1.2.3/16"], [FAST]),
        (["fd00::/16", "eth0"], [FAST_6, MANAGEMENT]),
        (["192.0.2.7"], [MANAGEMENT]),
        (["fe80::/10"], [LINK_LOCAL]),
        (["nothing-like-this", "docker0"], [BRIDGE]),
    ],
)
def test_a_network_is_named_by_interface_address_or_prefix(networks: list[str], expected: list[Address]) -> None:
    assert addresses(networks) == expected


@pytest.mark.usefixtures("machine")
def test_error_lists_addresses_when_none_matches() -> None:
    with pytest.raises(SettingError, match=r"network eth7,10\.9\.0\.0/16\..*ib0 10\.1\.0\.7/16.*docker0 172"):
        addresses(["eth7", "10.9.0.0/16"])


def test_link_local_addresses_are_offered_if_there_are_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interfaces, "_running", lambda: iter([LINK_LOCAL]))
    assert addresses() == [LINK_LOCAL]


def test_a_machine_without_a_network_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interfaces, "_running", lambda: iter([]))
    assert addresses() == []
    with pytest.raises(SettingError, match="none but loopback"):
        addresses(["eth0"])


def test_this_machine_can_be_read() -> None:
    for each in addresses():
        assert not ipaddress.ip_address(each.address.partition("%")[0]).is_loopback
        assert each.interface and 0 < each.prefix <= 128 and each.speed >= 0

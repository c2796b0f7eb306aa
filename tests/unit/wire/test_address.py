"""Addresses as `host:port`."""

from __future__ import annotations

import pytest

from farandole.base.wire.address import format_address, parse_address


@pytest.mark.parametrize("address", [("127.0.0.1", 1), ("::1", 4711), ("node-3.cluster", 65535)])
def test_addresses_can_be_read_back(address: tuple[str, int]) -> None:
    assert parse_address(format_address(*address)) == address


@pytest.mark.parametrize("text", ["", "host", "host:", ":12", "host:port", "::1:12", "host:-1"])
def test_bad_addresses_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        parse_address(text)

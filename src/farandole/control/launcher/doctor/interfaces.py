"""The network interfaces through which workers of other hosts could be reached."""

from __future__ import annotations

import ipaddress

from farandole.control.agent.inspect.facts import Interface


def is_usable(interface: Interface) -> bool:
    """Return whether workers of other hosts could be reached through an interface."""
    if interface.kind == "loopback" or interface.state != "up" or interface.carrier is False:
        return False
    return any(not ipaddress.ip_address(each.address).is_link_local for each in interface.addresses)

"""Network interfaces and RDMA adapters, from /sys."""

from __future__ import annotations

from farandole.control.agent.inspect.facts import Address, Interface, RdmaDevice
from farandole.control.agent.inspect.view import HostView

_NET = "/sys/class/net"
_INFINIBAND = "/sys/class/infiniband"
_VERBS = "/sys/class/infiniband_verbs"
_IFF_UP = 0x1
_IFF_LOOPBACK = 0x8


def interfaces(view: HostView) -> tuple[Interface, ...]:
    """Return every interface, physical ones first."""
    carried: dict[str, list[Address]] = {}
    for name, address, prefix in view.addresses():
        carried.setdefault(name, []).append(Address(address=address, prefix=prefix))
    names = [name for name in view.names(_NET) if view.exists(f"{_NET}/{name}/mtu")]
    found = [_interface(view, name, tuple(carried.get(name, ()))) for name in names]
    return tuple(sorted(found, key=lambda each: (each.kind != "physical", each.kind == "loopback", each.name)))


def _interface(view: HostView, name: str, addresses: tuple[Address, ...]) -> Interface:
    folder = f"{_NET}/{name}"
    flags = int(view.quiet_text(f"{folder}/flags") or "0", 16)
    # The kernel knows neither for an interface that is down; the speed of a virtual one is arbitrary, or -1.
    carrier, speed = view.number(f"{folder}/carrier"), view.number(f"{folder}/speed")
    return Interface(
        name=name,
        kind=_kind(view, name, flags),
        state="up" if flags & _IFF_UP else "down",
        carrier=None if carrier is None else carrier == 1,
        speed=speed if speed is not None and speed > 0 else None,
        mtu=view.number(f"{folder}/mtu"),
        driver=view.link(f"{folder}/device/driver"),
        addresses=addresses,
    )


def _kind(view: HostView, name: str, flags: int) -> str:
    folder = f"{_NET}/{name}"
    if flags & _IFF_LOOPBACK:
        return "loopback"
    if view.exists(f"{folder}/device"):
        return "physical"
    for line in (view.quiet_text(f"{folder}/uevent") or "").splitlines():
        if line.startswith("DEVTYPE="):
            return line.partition("=")[2]  # bridge, bond, vlan, vxlan, wireguard ...
    if view.exists(f"{folder}/bridge"):
        return "bridge"
    if view.exists(f"{folder}/bonding"):
        return "bond"
    return "tunnel" if view.exists(f"{folder}/tun_flags") else "virtual"


def rdma(view: HostView) -> tuple[RdmaDevice, ...]:
    """Return every port of every RDMA adapter."""
    found = []
    files = _device_files(view)
    for name in view.names(_INFINIBAND):
        for port in view.names(f"{_INFINIBAND}/{name}/ports"):
            folder = f"{_INFINIBAND}/{name}/ports/{port}"
            found.append(
                RdmaDevice(
                    name=name,
                    port=int(port),
                    state=(view.quiet_text(f"{folder}/state") or "").partition(":")[2].strip().lower(),
                    rate=view.quiet_text(f"{folder}/rate") or "",
                    link_layer=view.quiet_text(f"{folder}/link_layer") or "",
                    interfaces=tuple(view.names(f"{_INFINIBAND}/{name}/device/net")),
                    is_open=name in files,
                )
            )
    return tuple(found)


def _device_files(view: HostView) -> set[str | None]:
    """Return the adapters whose file in /dev exists; a container may lack the files of some adapters in /sys."""
    files = [name for name in view.names(_VERBS) if view.exists(f"/dev/infiniband/{name}")]
    return {view.quiet_text(f"{_VERBS}/{name}/ibdev") for name in files}

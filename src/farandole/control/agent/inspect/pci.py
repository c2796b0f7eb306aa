"""The positions of GPUs and RDMA adapters on the PCI bus, from /sys, and the path between two of them."""

from __future__ import annotations

from farandole.control.agent.inspect.view import HostView, whole_number

_DEVICES = "/sys/bus/pci/devices"
_NVIDIA = "0x10de"
_DISPLAY = "0x03"
_BRIDGE = "0x0680"


def nvidia_devices(view: HostView) -> tuple[list[str], list[str]]:
    """Return the addresses of NVIDIA's GPUs and of its NVSwitches on the bus."""
    ours = [name for name in view.names(_DEVICES) if view.quiet_text(f"{_DEVICES}/{name}/vendor") == _NVIDIA]
    classes = {name: view.quiet_text(f"{_DEVICES}/{name}/class") or "" for name in ours}
    return (
        [name for name in ours if classes[name].startswith(_DISPLAY)],
        [name for name in ours if classes[name].startswith(_BRIDGE)],
    )


def address(bus: str) -> str:
    """Return an address in the kernel's form.

    Example:
        >>> address("00000000:1B:00.0")
        '0000:1b:00.0'
    """
    domain, _, rest = bus.lower().partition(":")
    number = int(domain, 16)
    return f"{number:04x}:{rest}"


def numa_node(view: HostView, device: str) -> int | None:
    """Return the NUMA node of a device; None if the firmware does not report it."""
    number = whole_number(view.quiet_text(f"{_DEVICES}/{device}/numa_node"))
    return None if number is None or number < 0 else number


def between(view: HostView, first: str, second: str) -> str | None:
    """Return the most distant part of the path between two devices, in nvidia-smi's terms; None if it is unknown."""
    ways = [view.path_below(f"{_DEVICES}/{device}", "pci") for device in (first, second)]
    if not all(ways):
        return None
    return farthest(ways[0], ways[1], numa_node(view, first) == numa_node(view, second))


def farthest(first: tuple[str, ...], second: tuple[str, ...], same_node: bool) -> str:
    """Return the most distant part of the path between two devices, in nvidia-smi's terms.

    Args:
        first: the path of the first device, from its host bridge (`pci0000:15`) through ports of switches.
        second: the path of the second device.
        same_node: whether both are attached to the same NUMA node.

    Returns:
        `PIX` for one PCIe switch, `PXB` for several, `PHB` for a host bridge, `NODE` for several host bridges of one
        NUMA node, `SYS` for several NUMA nodes.
    """
    common = 0
    while common < min(len(first), len(second)) and first[common] == second[common]:
        common += 1
    if common == 0:
        return "NODE" if same_node else "SYS"
    if common == 1:
        return "PHB"
    # Below the upstream port that both have in common there is a downstream port of the same switch, and the device.
    return "PIX" if max(len(first), len(second)) - common <= 2 else "PXB"

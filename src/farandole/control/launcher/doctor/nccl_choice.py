"""NCCL's expected choices on a host: transports between its GPUs and to other hosts, as pure functions of the facts.

The rules are those of NCCL's documentation and source (2.30), including the variables by which users change them. NCCL
makes the actual choice when it connects; its log shows it (`nccl_log`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from farandole.control.agent.inspect.facts import Facts, GpuLink, Interface, RdmaDevice

# Levels from near to far, as NCCL's variables name them. NVLink is nearer than all of PCIe.
_LEVELS = ("LOC", "NVL", "PIX", "PXB", "PHB", "SYS")
# Numbers that these variables had as values in old versions.
_OLD_LEVELS = ("LOC", "PIX", "PXB", "PHB", "PHB", "SYS")
_DEFAULT_LEVEL = "PXB"
# Why the driver allows no P2P, in the words of `nvidia-smi topo -p2p`.
REFUSALS = {
    "CNS": "the chipset does not support it",
    "GNS": "this kind of GPU does not support it",
    "TNS": "the topology does not support it",
    "NS": "it is not supported",
    "DR": "it is switched off in the driver's settings",
}
_NOT_FOR_TRAINING = "^docker,lo,virbr"


@dataclass(frozen=True)
class Way:
    """The way in which NCCL would move data between two GPUs of the host."""

    name: str
    why: str = ""
    """Why it is not a faster one; "" if nothing is wrong."""


def between_gpus(facts: Facts, link: GpuLink) -> Way:
    """Return how NCCL would move data between two GPUs."""
    shared = "shared memory of the host"
    variables = facts.surroundings.variables
    if variables.get("NCCL_P2P_DISABLE", "0") != "0":
        return Way(shared, "NCCL_P2P_DISABLE is set")
    if any(gpu.partitioned for gpu in facts.gpus.devices if gpu.index in (link.first, link.second)):
        return Way(shared, "GPUs in MIG mode cannot read each other's memory")
    if link.p2p not in ("", "OK"):
        return Way(shared, f"the driver allows no P2P: {REFUSALS.get(link.p2p, link.p2p)}")
    level = _level(variables.get("NCCL_P2P_LEVEL"), _default_peer_level(facts))
    if _distance(link.kind) > _LEVELS.index(level):
        return Way(shared, "they are farther apart than a PCIe switch" if level == _DEFAULT_LEVEL else f"level {level}")
    return Way("NVLink" if link.kind.startswith("NV") else "PCIe, without the host's memory (P2P)")


def is_near(kind: str) -> bool:
    """Return whether a connection is near enough for NCCL to use it directly: NVLink, or PCIe switches only."""
    return _distance(kind) <= _LEVELS.index(_DEFAULT_LEVEL)


def _default_peer_level(facts: Facts) -> str:
    is_amd = "AMD" in (facts.processor.model or "")
    return "SYS" if is_amd and len(facts.gpus.devices) <= 2 else _DEFAULT_LEVEL


def _level(given: str | None, default: str) -> str:
    if given is None:
        return default
    if given.isdecimal():
        return _OLD_LEVELS[min(int(given), len(_OLD_LEVELS) - 1)]
    return given.upper() if given.upper() in _LEVELS else default


def _distance(kind: str) -> int:
    """Return the index of a connection in the list of levels. For NCCL, a NUMA node is one host bridge."""
    if kind.startswith("NV"):
        return _LEVELS.index("NVL")
    return _LEVELS.index({"NODE": "PHB"}.get(kind, kind)) if kind in (*_LEVELS, "NODE") else len(_LEVELS)


# --- other hosts ------------------------------------------------------------------------------------------------------


def rdma_ports(facts: Facts) -> tuple[RdmaDevice, ...]:
    """Return the ports of RDMA adapters that NCCL would use; empty: it uses TCP."""
    variables = facts.surroundings.variables
    if variables.get("NCCL_IB_DISABLE", "0") != "0" or facts.gpus.has_verbs is False:
        return ()
    chosen = variables.get("NCCL_IB_HCA", "")
    return tuple(port for port in facts.rdma if port.state == "active" and port.is_open and _is_chosen(chosen, port))


def _is_chosen(chosen: str, port: RdmaDevice) -> bool:
    return matches(chosen, port.name) or matches(chosen, f"{port.name}:{port.port}")


def no_rdma_because(facts: Facts) -> str:
    """Return why NCCL would not use RDMA; "" if it would."""
    if rdma_ports(facts):
        return ""
    if not facts.rdma:
        return "there is no RDMA adapter"
    if facts.surroundings.variables.get("NCCL_IB_DISABLE", "0") != "0":
        return "NCCL_IB_DISABLE is set"
    if facts.gpus.has_verbs is False:
        return "libibverbs is not installed"
    if not any(port.is_open for port in facts.rdma):
        return "the files in /dev/infiniband are missing"
    if not any(port.state == "active" for port in facts.rdma):
        return "no port is active"
    return "NCCL_IB_HCA leaves none of its ports"


def has_gpu_direct(facts: Facts) -> bool:
    """Return whether the kernel lets RDMA adapters read the memory of GPUs: by nvidia_peermem, or by dmabuf."""
    return facts.gpus.has_peer_memory or facts.gpus.is_open_driver


def gpu_direct(facts: Facts) -> dict[int, tuple[str, ...]]:
    """Return, for each GPU, the adapters that would access its memory without a copy in the host's memory."""
    ports = {port.name for port in rdma_ports(facts)} if has_gpu_direct(facts) else set()
    limit = _LEVELS.index(_level(facts.surroundings.variables.get("NCCL_NET_GDR_LEVEL"), _DEFAULT_LEVEL))
    return {
        gpu.index: tuple(
            link.adapter
            for link in facts.gpus.adapters
            if link.gpu == gpu.index and link.adapter in ports and _distance(link.kind) <= limit
        )
        for gpu in facts.gpus.devices
    }


def socket_interfaces(facts: Facts) -> tuple[str, ...]:
    """Return the interfaces that NCCL would use for TCP; with RDMA, the first one is used to set up connections."""
    there = [each for each in facts.network if _carries(each)]
    given = facts.surroundings.variables.get("NCCL_SOCKET_IFNAME")
    for wanted in (given,) if given else ("ib", _NOT_FOR_TRAINING, "docker", "lo", "virbr"):
        if found := tuple(each.name for each in there if matches(wanted, each.name)):
            return found
    return ()


def _carries(interface: Interface) -> bool:
    return interface.state == "up" and interface.carrier is not False and bool(interface.addresses)


def matches(wanted: str, name: str) -> bool:
    """Return whether a list in one of NCCL's variables matches a name: a prefix, `=`: the exact name, `^`: all others.

    Example:
        >>> matches("eth,ib", "eth0"), matches("=eth", "eth0"), matches("^docker,lo", "eth0")
        (True, False, True)
    """
    excludes = wanted.startswith("^")
    exact = wanted.lstrip("^").startswith("=")
    names = [each for each in wanted.lstrip("^=").split(",") if each]
    found = any(name == each if exact else name.startswith(each) for each in names)
    return not names or found != excludes


# --- as text ----------------------------------------------------------------------------------------------------------


def choices(facts: Facts) -> tuple[tuple[str, str], ...]:
    """Return what NCCL would choose, as rows of a subject and a text; empty without a GPU."""
    if not facts.gpus.devices:
        return ()
    rows = [("between GPUs", text) for text in _ways(facts)]
    rows.append(("other hosts", _network(facts)))
    if rdma_ports(facts):
        rows.append(("GPUDirect", _gpu_direct(facts)))
    interfaces = ", ".join(socket_interfaces(facts)) or "none has an address"
    rows.append(("interfaces", f"{interfaces} (NCCL_SOCKET_IFNAME chooses others)"))
    return tuple(rows)


def _ways(facts: Facts) -> list[str]:
    groups: dict[Way, list[str]] = {}
    for link in facts.gpus.links:
        groups.setdefault(between_gpus(facts, link), []).append(f"{link.first}-{link.second}")
    return [
        way.name + (f" between {pairs_of(pairs, len(groups) == 1)}") + (f": {way.why}" if way.why else "")
        for way, pairs in groups.items()
    ]


def pairs_of(pairs: Sequence[str], are_all: bool) -> str:
    """Format pairs of GPUs; if there are many, only the first ones."""
    return "all" if are_all else " ".join(pairs[:12]) + (f" and {len(pairs) - 12} more" if len(pairs) > 12 else "")


def _network(facts: Facts) -> str:
    ports = rdma_ports(facts)
    if not ports:
        return f"TCP over {', '.join(socket_interfaces(facts)) or 'no interface'}: {no_rdma_because(facts)}"
    kinds = sorted({"RoCE" if port.link_layer == "Ethernet" else port.link_layer or "RDMA" for port in ports})
    return f"{' and '.join(kinds)} by " + ", ".join(f"{port.name} ({port.rate})" for port in ports)


def _gpu_direct(facts: Facts) -> str:
    if not has_gpu_direct(facts):
        return "no: neither nvidia_peermem nor the open kernel modules are loaded, so data pass through host memory"
    groups: dict[tuple[str, ...], list[str]] = {}
    for gpu, adapters in gpu_direct(facts).items():
        groups.setdefault(adapters, []).append(str(gpu))
    told = []
    for adapters, gpus in groups.items():
        who = f"GPU {', '.join(gpus)}"
        told.append(f"{who} by {', '.join(adapters)}" if adapters else f"not {who}: no adapter behind the same switch")
    return "; ".join(told)

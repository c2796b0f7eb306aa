"""NCCL's own log (`NCCL_DEBUG=INFO`): the transports between ranks, and those that could not be used, with reasons.

Pure functions of the lines. Several processes may have written to one log, and a launcher may have added a prefix to
each line. NCCL does not document these lines; their forms are those of NCCL 2.4 to 2.30.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from farandole.base.display.wording import count
from farandole.control.launcher.doctor.findings import Finding, Level, in_order

_LINE = re.compile(
    r"(?P<host>[^\s:]+):(?P<process>[0-9]+):(?P<thread>[0-9]+) \[-?[0-9]+\] "
    r"(?:\S+:[0-9]+ )?NCCL (?P<level>INFO|WARN) (?P<text>.*)"
)
_VERSION = re.compile(r"NCCL version ([0-9]+\.[0-9]+\.[0-9]+)")
_INIT = re.compile(
    r"comm (?P<address>0x[0-9a-f]+) rank (?P<rank>[0-9]+) n[rR]anks (?P<size>[0-9]+) "
    r".*?(?:splitCount (?P<split>[0-9]+) color (?P<color>-?[0-9]+) key .*?)?(?:commId (?P<id>0x[0-9a-f]+) )?"
    r"- Init (?P<state>START|COMPLETE)"
)
_CONNECTION = re.compile(
    r"(?:Channel|Ring) [0-9]+(?:/[0-9]+)? : ([0-9]+)(?:\[\w+\])? -> ([0-9]+)(?:\[\w+\])? (?:\[\w+\] )?via (\S+)"
)
_NETWORK = re.compile(r"Using network (.+)")
_CHANNELS = re.compile(r"[0-9]+ coll channels, .*?([0-9]+) nvls channels")
_VARIABLE = re.compile(r"(NCCL_\w+) set (?:by environment )?to (\S+)")
# Variables that disable or choose a transport.
_CHOOSING = frozenset(
    f"NCCL_{name}"
    for name in "P2P_DISABLE P2P_LEVEL SHM_DISABLE IB_DISABLE IB_HCA NET NET_GDR_LEVEL NET_GDR_READ SOCKET_IFNAME "
    "NVLS_ENABLE CUMEM_ENABLE DMABUF_ENABLE ALGO PROTO".split()
)


@dataclass(frozen=True)
class Reason:
    """A kind of line with which NCCL reports that it cannot use something."""

    pattern: str
    level: Level
    text: str
    todo: str


_REASONS = (
    Reason(
        "Failed to open libibverbs",
        "note",
        "libibverbs could not be opened, so RDMA was not used",
        "apt-get install libibverbs1 ibverbs-providers, in the container too",
    ),
    Reason(
        "NET/IB ?: No device found",
        "note",
        "no usable RDMA port was found",
        "farandole doctor shows the ports there: are they active, are their files in /dev/infiniband?",
    ),
    Reason(
        "P2P is disabled between NVLINK connected GPUs",
        "problem",
        "GPUs that NVLink joins cannot read each other's memory, which NCCL takes for a fault of the hardware",
        "nvidia-smi nvlink --status; is nvidia-fabricmanager running? then restart the machine",
    ),
    Reason(
        "P2P is disabled between|Could not enable P2P between",
        "note",
        "the driver allows no P2P between some GPUs, so their data pass through the host's memory",
        "nvidia-smi topo -p2p r says why; virtual machines, IOMMU and PCIe ACS may prevent it",
    ),
    Reason(
        r"NET/(?!Socket)\S+ ?: GPU Direct RDMA Disabled",
        "note",
        "GPUDirect RDMA was off, so data for other hosts passed through the host's memory",
        "modprobe nvidia-peermem (as root), or use the driver's open kernel modules",
    ),
    Reason(
        "Duplicate GPU detected",
        "problem",
        "several ranks use the same GPU",
        "give each rank a GPU of its own; NCCL 2.30 allows sharing with NCCL_MULTI_RANK_GPU_ENABLE=1",
    ),
    Reason(
        "No space left on device|[Ee]rror while creating shared memory segment",
        "problem",
        "shared memory ran out",
        "enlarge /dev/shm: docker run --shm-size=1g, or --ipc=host",
    ),
    Reason(
        r"ibv_(reg_mr|create_cq|create_qp)\w* failed",
        "problem",
        "an RDMA adapter got no memory, probably because too little may be locked",
        "ulimit -l unlimited (docker: --ulimit memlock=-1)",
    ),
)
_SHOWN_WARNINGS = 10


@dataclass
class Communicator:
    """A communicator of NCCL, as far as the log shows it."""

    name: str
    """NCCL's id of the communicator."""
    size: int
    hosts: dict[int, str] = field(default_factory=dict)
    """By rank: the host that it is on."""
    complete: set[int] = field(default_factory=set)
    """The ranks whose initialization completed."""
    connections: dict[tuple[int, int], set[str]] = field(default_factory=dict)
    """By sending and receiving rank: the ways between them in NCCL's words, such as `P2P/CUMEM`, `NET/IB/0/GDRDMA`."""
    nvls_channels: int = 0


@dataclass
class Log:
    """The content of a log of NCCL."""

    lines: int = 0
    """Number of NCCL's own lines."""
    versions: set[str] = field(default_factory=set)
    communicators: dict[str, Communicator] = field(default_factory=dict)
    networks: set[str] = field(default_factory=set)
    """The network that processes would use between hosts, such as `IB`, `Socket`, or a plugin's name."""
    variables: dict[str, str] = field(default_factory=dict)
    reasons: dict[Reason, set[str]] = field(default_factory=dict)
    """By reason: the hosts on which NCCL gave it."""
    warnings: dict[str, set[str]] = field(default_factory=dict)
    """By other warning: the hosts."""


def parse(lines: Iterable[str]) -> Log:
    """Parse the lines of a log; lines of other programs are ignored."""
    log = Log()
    current: dict[tuple[str, ...], Communicator] = {}
    begun: dict[tuple[str, ...], Communicator] = {}
    for line in lines:
        if "NCCL" not in line:
            continue
        if version := _VERSION.search(line):
            log.versions.add(version[1])
        found = _LINE.search(line)
        if found is None:
            continue
        log.lines += 1
        host, text = found["host"], found["text"].strip()
        process = (host, found["process"])
        thread = (*process, found["thread"])
        if init := _INIT.search(text):
            key = (*process, init["address"])
            # The line that ends an initialization may lack the name that the first one has.
            is_end = init["state"] == "COMPLETE" and key in begun
            communicator = begun[key] if is_end else _named(log, init)
            begun[key] = current[thread] = current[process] = communicator
            communicator.hosts[int(init["rank"])] = host
            if init["state"] == "COMPLETE":
                communicator.complete.add(int(init["rank"]))
            continue
        # Connections may be made by another thread, when they are needed for the first time.
        owner = current.get(thread) or current.get(process)
        if connection := _CONNECTION.match(text):
            pair = int(connection[1]), int(connection[2])
            (owner or _unnamed(log)).connections.setdefault(pair, set()).add(connection[3])
        elif (channels := _CHANNELS.match(text)) and owner is not None:
            owner.nvls_channels = max(owner.nvls_channels, int(channels[1]))
        else:
            _note(log, host, text, found["level"] == "WARN")
    return log


def _named(log: Log, init: re.Match[str]) -> Communicator:
    """Return the communicator of a line about its initialization."""
    size = int(init["size"])
    if init["id"] not in (None, "0x0"):
        name = init["id"]
    elif init["split"] is not None:
        name = f"of split {init['split']}, color {init['color']}"
    else:
        # Old versions print nothing that distinguishes two communicators of the same size.
        name = f"of {size} ranks"
    return log.communicators.setdefault(name, Communicator(name, size))


def _unnamed(log: Log) -> Communicator:
    """Return the communicator for lines without an earlier line about its initialization."""
    return log.communicators.setdefault("", Communicator("", 0))


def _note(log: Log, host: str, text: str, is_warning: bool) -> None:
    if (variable := _VARIABLE.match(text)) and variable[1] in _CHOOSING:
        log.variables[variable[1]] = variable[2].rstrip(".")
    if network := _NETWORK.match(text):
        log.networks.add(network[1])
    reason = next((each for each in _REASONS if re.search(each.pattern, text)), None)
    if reason is not None:
        log.reasons.setdefault(reason, set()).add(host)
        return
    if is_warning:
        log.warnings.setdefault(text, set()).add(host)


# --- as text ----------------------------------------------------------------------------------------------------------

_KINDS = (
    ("P2P", "directly between GPUs"),
    ("SHM", "through shared memory of the host"),
    ("NET/IB", "by RDMA"),
    ("NET/Socket", "by TCP"),
    ("NET", "by a plugin's network"),
)


def kind_of(way: str) -> str:
    """Return the meaning of a transport in NCCL's words.

    Example:
        >>> kind_of("P2P/CUMEM/read"), kind_of("NET/IB/0/GDRDMA")
        ('directly between GPUs', 'by RDMA, with GPUDirect')
    """
    kind = next((text for begin, text in _KINDS if way.startswith(begin)), f"by {way}")
    return f"{kind}, with GPUDirect" if "/GDRDMA" in way else kind


def describe(log: Log) -> list[str]:
    """Return a summary of a log as lines of text, the largest communicators first."""
    lines = [f"NCCL {' and '.join(sorted(log.versions))}"] if log.versions else []
    lines += [f"network between hosts: {' and '.join(sorted(log.networks))}"] if log.networks else []
    for communicator in sorted(log.communicators.values(), key=lambda each: -each.size):
        lines += ["", *_describe(communicator)]
    if log.variables:
        lines += ["", "variables: " + " ".join(f"{name}={value}" for name, value in sorted(log.variables.items()))]
    return lines


def _describe(communicator: Communicator) -> list[str]:
    hosts = sorted(set(communicator.hosts.values()))
    head = "connections whose communicator is not in the log"
    if communicator.name:
        where = count(len(hosts), "host")
        head = f"communicator {communicator.name}: {communicator.size} ranks, {len(communicator.hosts)} of them "
        head += f"in this log, on {where}"
    lines = [head]
    for is_within, title in ((True, "within a host"), (False, "between hosts")):
        for kind, pairs in _by_kind(communicator, is_within).items():
            shown = " ".join(f"{first}-{second}" for first, second in sorted(pairs)[:12])
            more = f" and {len(pairs) - 12} more" if len(pairs) > 12 else ""
            lines.append(f"  {title}: {kind}: {shown}{more}")
    if communicator.nvls_channels:
        lines.append(f"  sums in the NVSwitch (NVLS): {communicator.nvls_channels} channels")
    return lines


def _by_kind(communicator: Communicator, is_within: bool) -> dict[str, set[tuple[int, int]]]:
    found: dict[str, set[tuple[int, int]]] = {}
    for pair, ways in communicator.connections.items():
        for way in sorted(ways):
            if _is_within(communicator, pair, way) == is_within:
                found.setdefault(f"{kind_of(way)} ({_short(way)})", set()).add(pair)
    return found


def _is_within(communicator: Communicator, pair: tuple[int, int], way: str) -> bool:
    hosts = [communicator.hosts.get(rank) for rank in pair]
    return not way.startswith("NET") if None in hosts else hosts[0] == hosts[1]


def _short(way: str) -> str:
    """Return the kind of a transport, without details: `NET/IB/0(3)/GDRDMA` becomes `NET/IB`."""
    return "/".join(way.split("/")[:2])


def findings(log: Log) -> list[Finding]:
    """Return the findings about failures in a log."""
    found = [
        Finding(reason.level, "nccl", f"{reason.text} ({_some(hosts)})", reason.todo)
        for reason, hosts in log.reasons.items()
    ]
    for text, hosts in list(log.warnings.items())[:_SHOWN_WARNINGS]:
        found.append(Finding("problem", "nccl", f"NCCL warns: {text} ({_some(hosts)})"))
    if (more := len(log.warnings) - _SHOWN_WARNINGS) > 0:
        found.append(Finding("problem", "nccl", f"NCCL warns of {more} more things, which are in the log"))
    for communicator in log.communicators.values():
        found += _of_communicator(communicator)
    if len(log.versions) > 1:
        text = f"processes use different versions of NCCL: {', '.join(sorted(log.versions))}"
        found.append(Finding("problem", "nccl", text, "install the same version everywhere"))
    return in_order(found)


def _of_communicator(communicator: Communicator) -> Iterable[Finding]:
    if begun := set(communicator.hosts) - communicator.complete:
        text = f"the initialization of communicator {communicator.name} did not end on ranks {_numbers(begun)}"
        missing = set(range(communicator.size)) - set(communicator.hosts)
        todo = "look at what these ranks did: py-spy dump, or the last lines of their output"
        if missing:
            todo = f"ranks {_numbers(missing)} are not in this log; they may not have come"
        yield Finding("problem", "nccl", text, todo)
    through_network = [
        pair
        for pair, ways in communicator.connections.items()
        if any(way.startswith("NET") and _is_within(communicator, pair, way) for way in ways)
    ]
    if through_network:
        shown = " ".join(f"{first}-{second}" for first, second in sorted(through_network)[:12])
        text = f"ranks of one host reach each other through the network only: {shown}"
        todo = "start one container for each host, or share /dev/shm and processes (--ipc=host --pid=host)"
        yield Finding("note", "nccl", text, todo)


def _some(hosts: set[str]) -> str:
    names = sorted(hosts)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _numbers(ranks: set[int]) -> str:
    numbers = [str(rank) for rank in sorted(ranks)]
    return " ".join(numbers[:12]) + (f" and {len(numbers) - 12} more" if len(numbers) > 12 else "")

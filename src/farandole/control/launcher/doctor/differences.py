"""Differences between hosts of one job that should not exist: a pure function of the facts about each."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping, Sequence

from farandole.base.display.wording import count
from farandole.base.nccl_library import version_text
from farandole.control.agent.inspect.facts import Facts
from farandole.control.launcher.doctor.findings import Finding, Level, in_order
from farandole.control.launcher.doctor.interfaces import is_usable

# With a smaller difference, people can still tell from the logs of two hosts which event came first.
CLOCK_SECONDS = 1.0


def differences(hosts: Mapping[str, Facts]) -> list[Finding]:
    """Return the differences between hosts, problems first; empty for fewer than two hosts."""
    findings = [_differing(hosts, *row) for row in _ROWS]
    findings += [*_same_name(hosts), *_same_gpus(hosts), *_clocks(hosts), *_networks(hosts)]
    return in_order(finding for finding in findings if finding is not None)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _torch(facts: Facts) -> str:
    return next((each.version or "unknown" for each in facts.frameworks if each.name == "torch"), "none")


def _gpus(facts: Facts) -> str:
    kinds = sorted({gpu.name for gpu in facts.gpus.devices})
    return f"{len(facts.gpus.devices)} {' and '.join(kinds)}".strip()


def _nccl(facts: Facts) -> str:
    found = facts.gpus.nccl
    return "none" if found is None or found.version is None else version_text(found.version)


# The compared facts: level, subject, name, how to read it, what to do.
_ROWS: Sequence[tuple[Level, str, str, Callable[[Facts], str], str]] = (
    (
        "problem",
        "farandole",
        "versions of farandole",
        lambda facts: facts.software.version,
        "install the same version everywhere",
    ),
    (
        "note",
        "python",
        "versions of Python",
        lambda facts: _minor(facts.software.python),
        "farandole.run(function) needs the same version everywhere; scripts may not",
    ),
    ("note", "frameworks", "versions of torch", _torch, "install the same version everywhere"),
    (
        "note",
        "cores",
        "numbers of cores",
        lambda facts: str(facts.processor.allowed),
        "the slowest worker sets the pace: give hosts slots that fit",
    ),
    ("note", "gpus", "GPUs", _gpus, "the slowest worker sets the pace: give hosts slots that fit"),
    ("note", "nccl", "versions of NCCL", _nccl, "GPU tensors travel through host memory until all have the same"),
    ("note", "library", "processors", lambda facts: facts.system.architecture, ""),
)


def _differing(
    hosts: Mapping[str, Facts], level: Level, subject: str, noun: str, read: Callable[[Facts], str], todo: str
) -> Finding | None:
    groups: dict[str, list[str]] = {}
    for host, facts in hosts.items():
        groups.setdefault(read(facts), []).append(host)
    if len(groups) < 2:
        return None
    told = "; ".join(f"{value} on {shorten(names)}" for value, names in groups.items())
    return Finding(level, subject, f"hosts have different {noun}: {told}", todo)


def shorten(names: Sequence[str]) -> str:
    """Format names of hosts, at most three of them.

    Example:
        >>> shorten(["a", "b", "c", "d", "e"])
        'a, b, c and 2 more'
    """
    rest = len(names) - 3
    return ", ".join(names) if rest < 1 else f"{', '.join(names[:3])} and {rest} more"


def _same_name(hosts: Mapping[str, Facts]) -> list[Finding]:
    """Find names that mean the same machine, and machines with the same hostname."""
    findings = []
    groups: dict[str, list[str]] = {}
    for host, facts in hosts.items():
        groups.setdefault(facts.system.hostname, []).append(host)
    for hostname, names in groups.items():
        if len(names) < 2:
            continue
        if len({hosts[name].system.boot for name in names}) == 1:
            text = f"{shorten(names)} are the same machine ({hostname})"
            findings.append(Finding("note", "system", text, "list it once, with all its slots"))
        else:
            text = f"{shorten(names)} are different machines with the same hostname {hostname}"
            findings.append(Finding("problem", "system", text, "give each its own name: hostnamectl set-hostname NAME"))
    return findings


def _same_gpus(hosts: Mapping[str, Facts]) -> list[Finding]:
    """Find hosts, such as containers, that see the same GPU."""
    seen: dict[str, list[str]] = {}
    for host, facts in hosts.items():
        for uuid in facts.gpus.cuda.uuids if facts.gpus.cuda is not None else ():
            seen.setdefault(uuid, []).append(host)
    groups: dict[tuple[str, ...], int] = {}
    for names in seen.values():
        if len(names) > 1:
            groups[tuple(names)] = groups.get(tuple(names), 0) + 1
    return [
        Finding(
            "note",
            "gpus",
            f"{shorten(names)} see the same {count(number, 'GPU')}, which only one rank may use",
            "give each container GPUs of its own, or list the machine once; otherwise host memory is used",
        )
        for names, number in groups.items()
    ]


def _clocks(hosts: Mapping[str, Facts]) -> list[Finding]:
    findings = []
    for host, facts in hosts.items():
        ahead = facts.clock.ahead
        if ahead is not None and abs(ahead) >= CLOCK_SECONDS:
            how = "ahead of" if ahead > 0 else "behind"
            text = f"the clock of {host} is {abs(ahead):.1f} s {how} this machine's"
            findings.append(Finding("note", "clock", text, "run chrony, ntpd or systemd-timesyncd there"))
    return findings


def _networks(hosts: Mapping[str, Facts]) -> list[Finding]:
    """Find hosts without a common network, and networks on which hosts have different packet sizes."""
    shared = _shared_networks(hosts)
    findings = []
    for network, members in shared.items():
        if len(set(members.values())) > 1:
            told = ", ".join(f"{mtu} on {host}" for host, mtu in list(members.items())[:4])
            text = f"hosts have different MTUs in {network} ({told}): large packets may be lost silently"
            findings.append(Finding("problem", "network", text, "ip link set INTERFACE mtu N, the same everywhere"))
    if len(hosts) > 1 and not any(len(members) == len(hosts) for members in shared.values()):
        text = "no network contains all hosts: they need routes to each other"
        findings.append(Finding("note", "network", text, "check that workers can connect to each other on any port"))
    return findings


def _shared_networks(hosts: Mapping[str, Facts]) -> dict[str, dict[str, int | None]]:
    """Return the hosts of each network, each with the MTU of its interface."""
    members: dict[str, dict[str, int | None]] = {}
    owner: dict[str, str] = {}
    private = set()
    for host, facts in hosts.items():
        for interface in filter(is_usable, facts.network):
            for each in interface.addresses:
                network = ipaddress.ip_network(f"{each.address}/{each.prefix}", strict=False)
                members.setdefault(str(network), {})[host] = interface.mtu
                # 172.17.0.1 is the own address of many machines: such a network does not connect them.
                if network.is_link_local or owner.setdefault(each.address, host) != host:
                    private.add(str(network))
    return {network: sizes for network, sizes in members.items() if network not in private}

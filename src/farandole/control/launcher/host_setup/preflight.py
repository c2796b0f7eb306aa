"""Checks all hosts at once before anything starts: that they are reachable, can run the script, and reach each other.

The findings form a table; each problem has a hint. If the job is refused, nothing has been started.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from farandole.base.display.tables import lines
from farandole.base.installed import own_version
from farandole.base.wire.interfaces import Address, list_addresses, pick
from farandole.control.agent.connectivity_messages import (
    ConnectTarget,
    ConnectTried,
    OpenPorts,
    PortsOpened,
    TryConnect,
)
from farandole.control.agent.protocol import Look, Looked, Ready
from farandole.control.launcher.agents.agent_client import AgentClient
from farandole.control.launcher.agents.agent_lost import AgentLost
from farandole.control.launcher.job.dialed_hosts import DialedHosts
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.plan.model import HostPlan
from farandole.control.launcher.targets.access import Access, how_to_install, why_not_started
from farandole.control.launcher.targets.installation import install_command
from farandole.errors import SpecError

# Up to this many hosts, each connects to all others; with more, each connects to some.
MOST_THAT_TRY_ALL = 32
CONNECT_SECONDS = 3.0
_ANSWER_SECONDS = 30.0
# A larger difference of clocks makes logs and timelines of several hosts hard to read, and breaks certificates.
_CLOCK_SECONDS = 2.0


@dataclass
class Finding:
    """The findings about one host."""

    label: str
    slots: int
    facts: Ready | None = None
    clock_ahead: float = 0.0
    """Seconds by which its clock is ahead of the launcher's."""
    versions: Mapping[str, str] = field(default_factory=dict)
    reaches: tuple[int, int] = (0, 0)
    """The number of other hosts that it reaches, and the number that it tried."""
    networks: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Name of each network interface, with its addresses that other hosts reach; the preferred interface first."""
    problem: str = ""
    hint: str = ""


def not_reached(host: Host, slots: int, why: AgentLost, access: Access) -> Finding:
    """Return the finding about a host whose agent did not start."""
    problem, hint = why_not_started(host, str(why), access)
    return Finding(host.label, slots, problem=problem, hint=hint)


def first_look(agent: AgentClient, access: Access) -> Finding:
    """Return the finding from an agent's report about its host; hints use the way to it."""
    facts = agent.facts
    assert facts is not None
    finding = Finding(agent.host.label, agent.host.slots or 0, facts, clock_ahead=agent.clock_ahead)
    if facts.version != own_version():
        python = agent.host.python or sys.executable
        finding.problem = f"it has farandole {facts.version}, but this machine has {own_version()}"
        finding.hint = f"install the same version there: {how_to_install(agent.host, access, python)}"
    return finding


def choose_networks(finding: Finding, wanted: Sequence[str]) -> None:
    """Record the addresses at which the host can be reached, as far as it knows itself."""
    assert finding.facts is not None
    found = [Address(each.name, each.address, each.prefix, each.speed) for each in finding.facts.interfaces]
    chosen = pick(found, wanted) if wanted else found
    if not chosen:
        finding.problem = f"none of its addresses is in the network {','.join(wanted)}; it has: {list_addresses(found)}"
        finding.hint = "name a network that every host has; a numeric one works best: --network 10.0.0.0/8"
        return
    grouped: dict[str, list[str]] = {}
    for each in chosen:
        grouped.setdefault(each.interface, []).append(each.address)
    finding.networks = tuple((name, tuple(listed)) for name, listed in grouped.items())


async def look_at_workers(
    agents: Sequence[AgentClient],
    findings: Mapping[str, Finding],
    plans: Mapping[str, tuple[HostPlan, Mapping[str, str]]],
    access: Access,
    tuning: Mapping[str, str],
) -> None:
    """Check on every host whether its workers can be started, and which versions of software it has.

    Args:
        agents: the agents of the hosts.
        findings: the findings to complete, by label.
        plans: the plan for each host and the environment of its workers, by label.
        access: the way to other hosts.
        tuning: the file with the results of autotuning that a host must have, by label.
    """

    async def look(agent: AgentClient) -> None:
        label = agent.host.label
        host, environment = plans[label]
        try:
            answer = await agent.ask(
                lambda number: Look(number, host.command, host.directory, dict(environment), tuning.get(label, "")),
                _ANSWER_SECONDS,
            )
        except AgentLost as error:
            findings[label].problem = str(error)
            return
        assert isinstance(answer, Looked)
        findings[label].versions = answer.versions
        if answer.problem:
            findings[label].problem, findings[label].hint = answer.problem, answer.hint
        if answer.missing:
            there = None if agent.local else access
            findings[label].hint = _how_to_get(answer.missing, agent.host, there, answer.python)

    await asyncio.gather(*map(look, agents))


def _how_to_get(modules: Sequence[str], host: Host, access: Access | None, python: str) -> str:
    """Return the hint for installing modules that are missing on this machine (`access` is None) or on another host."""
    if isinstance(access, DialedHosts):
        return how_to_install(host, access, python, modules)
    command = install_command(host, access, python, modules)
    return f"install it: {command}; if it is a file of yours, put it beside the script: --ship . copies it"


async def look_at_networks(agents: Sequence[AgentClient], findings: Mapping[str, Finding]) -> None:
    """Let the hosts try to reach each other, and record the addresses that all others reach."""
    opened: dict[str, PortsOpened] = {}

    async def open_ports(agent: AgentClient) -> None:
        listed = tuple(address for _, addresses in findings[agent.host.label].networks for address in addresses)
        try:
            answer = await agent.ask(lambda number: OpenPorts(number, listed), _ANSWER_SECONDS)
        except AgentLost as error:
            findings[agent.host.label].problem = str(error)
            return
        assert isinstance(answer, PortsOpened)
        opened[agent.host.label] = answer

    await asyncio.gather(*map(open_ports, agents))
    reachable = [agent for agent in agents if agent.host.label in opened]
    labels = [agent.host.label for agent in reachable]
    answers: dict[tuple[int, int], dict[str, str]] = {}

    async def try_connect(number: int) -> None:
        agent = reachable[number]
        targets = _targets_of(number, len(reachable))
        wanted = tuple(
            each
            for target in targets
            for each in _open_targets(target, findings[labels[target]], opened[labels[target]])
        )
        try:
            answer = await agent.ask(lambda question: TryConnect(question, wanted, CONNECT_SECONDS), _ANSWER_SECONDS)
        except AgentLost as error:
            findings[agent.host.label].problem = str(error)
            return
        assert isinstance(answer, ConnectTried)
        for target in targets:
            answers[number, target] = {}
        for each in answer.answers:
            answers[number, each.host][each.address] = each.trouble

    await asyncio.gather(*map(try_connect, range(len(reachable))))
    judge_networks([findings[agent.host.label] for agent in reachable], answers)


def _targets_of(number: int, hosts: int) -> list[int]:
    """Return the hosts that a host connects to: all others or, of many hosts, those 1, 2, 4, 8 ... places after it."""
    if hosts <= MOST_THAT_TRY_ALL:
        return [other for other in range(hosts) if other != number]
    steps = (2**power for power in range(hosts.bit_length()))
    return sorted({(number + step) % hosts for step in steps if step < hosts} - {number})


def _open_targets(target: int, finding: Finding, opened: PortsOpened) -> list[ConnectTarget]:
    listed = [address for _, addresses in finding.networks for address in addresses]
    return [
        ConnectTarget(target, address, port, opened.token)
        for address, port in zip(listed, opened.ports, strict=True)
        if port
    ]


def judge_networks(findings: Sequence[Finding], answers: Mapping[tuple[int, int], Mapping[str, str]]) -> None:
    """Record which hosts do not reach each other, and keep only the addresses that work.

    Args:
        findings: the findings about the hosts, to be completed.
        answers: by the connecting host and the target (indices in `findings`): for each address the reason why it was
            not reached; "" if it was.
    """
    heard_by: dict[int, list[Mapping[str, str]]] = {}
    for (number, target), heard in answers.items():
        heard_by.setdefault(target, []).append(heard)
        reached = [address for address, trouble in heard.items() if not trouble]
        done, asked = findings[number].reaches
        findings[number].reaches = (done + bool(reached), asked + 1)
        if not reached and not findings[number].problem:
            tried = "; ".join(f"{address}: {trouble}" for address, trouble in heard.items()) or "it has no address"
            findings[number].problem = f"it does not reach {findings[target].label} ({tried})"
            findings[number].hint = (
                "workers talk to each other on arbitrary TCP ports: open the firewall between these hosts, or name a "
                "network that connects them: --network 10.0.0.0/8"
            )
    for target, finding in enumerate(findings):
        _keep_what_all_reach(finding, heard_by.get(target, []))


def _keep_what_all_reach(finding: Finding, heard_by: Sequence[Mapping[str, str]]) -> None:
    """Remove addresses that some host does not reach, unless no address is reached by all hosts."""

    def reached_by_all(address: str) -> bool:
        return all(heard.get(address, "not tried") == "" for heard in heard_by)

    kept = tuple(
        (name, tuple(filter(reached_by_all, addresses)))
        for name, addresses in finding.networks
        if any(map(reached_by_all, addresses))
    )
    finding.networks = kept or finding.networks


def compare(findings: Sequence[Finding], known_machines: Sequence[str]) -> list[str]:
    """Return warnings about differences that do not prevent the start of the job.

    Args:
        findings: the findings about all hosts.
        known_machines: identifiers of machines on which several hosts are expected: this one may be named twice, and
            several hosts on one machine may have dialed.
    """
    warnings = []
    for finding in findings:
        if abs(finding.clock_ahead) > _CLOCK_SECONDS:
            ahead = "ahead of" if finding.clock_ahead > 0 else "behind"
            warnings.append(
                f"the clock of {finding.label} is {abs(finding.clock_ahead):.0f} s {ahead} this machine's; logs will "
                "not be in order. Check that NTP is running there"
            )
    for name in sorted({name for finding in findings for name in finding.versions}):
        by_version: dict[str, list[str]] = {}
        for finding in findings:
            if name in finding.versions:
                by_version.setdefault(finding.versions[name], []).append(finding.label)
        if len(by_version) > 1:
            which = "; ".join(f"{version or '?'} on {', '.join(labels)}" for version, labels in by_version.items())
            warnings.append(f"{name} differs between hosts: {which}")
    by_machine: dict[str, list[str]] = {}
    for finding in findings:
        if finding.facts is not None:
            by_machine.setdefault(finding.facts.machine, []).append(finding.label)
    for machine, labels in by_machine.items():
        if len(labels) > 1 and machine not in known_machines:
            shown = labels if len(labels) <= 3 else [*labels[:2], f"{len(labels) - 2} more"]
            warnings.append(f"{' and '.join(shown)} are one machine: its workers share it")
    return warnings


class HostsRefused(SpecError):
    """Some hosts cannot run the job.

    Attributes:
        findings: the findings about these hosts.
    """

    def __init__(self, message: str, hint: str, findings: Sequence[Finding]) -> None:
        super().__init__(message, hint)
        self.findings = tuple(findings)


def refuse_if_wrong(findings: Sequence[Finding], access: Access) -> None:
    """Raise HostsRefused if there is a problem; its text has the table, and a hint for each host."""
    wrong = [finding for finding in findings if finding.problem]
    if not wrong:
        return
    lines = [f"{len(wrong)} of {len(findings)} hosts cannot take part; nothing was started", ""]
    lines += [f"    {line}" for line in render(findings)] + [""]
    for finding in wrong:
        lines += [f"  {finding.label}: {finding.problem}"]
        lines += [f"    hint: {finding.hint}"] if finding.hint else []
    raise HostsRefused("\n".join(lines), _doctor([finding.label for finding in wrong], access), wrong)


def _doctor(labels: Sequence[str], access: Access) -> str:
    if isinstance(access, DialedHosts):
        return "farandole doctor, where these hosts run, shows more"
    return f"{shlex.join(['farandole', 'doctor', *access.flags, '-H', ','.join(labels)])} shows more"


def render(findings: Sequence[Finding]) -> list[str]:
    """Return the table."""
    names = sorted({name for finding in findings for name in finding.versions if name not in ("python", "farandole")})
    rows = [["host", "slots", "cores", "load", "gpus", "python", "farandole", *names, "clock", "reaches", ""]]
    rows += [_row(finding, names) for finding in findings]
    return lines(rows)


def _row(finding: Finding, names: Sequence[str]) -> list[str]:
    verdict = "NOT READY" if finding.problem else "ready"
    facts = finding.facts
    if facts is None:
        return [finding.label, str(finding.slots), *["-"] * (len(names) + 7), verdict]
    reached, asked = finding.reaches
    return [
        finding.label,
        str(finding.slots),
        str(facts.cores),
        f"{facts.load:.1f}",
        str(facts.gpus),
        finding.versions.get("python") or facts.python,
        facts.version,
        *(finding.versions.get(name, "-") or "?" for name in names),
        f"{finding.clock_ahead:+.1f} s",
        f"{reached} of {asked}" if asked else "-",
        verdict,
    ]

"""`farandole doctor`: what this machine, or these hosts, have, and what to do about it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from farandole.agent.inspect.facts import Facts
    from farandole.launcher.advice import Finding, Intent
    from farandole.launcher.inspection import Inspect, Silence
    from farandole.launcher.prescription import Paint

_USAGE_ERROR = 2
_PROBLEM = 1

_EPILOG = """\
examples:
  farandole doctor                     this machine
  farandole doctor --import            also import every framework, which takes seconds
  farandole doctor -H h1:4,h2:4        these hosts, asked through ssh, and how they differ

It looks, and changes nothing. The exit code is 0 when no problem was found, and 1 otherwise.
"""


def add_parser(verbs: Any) -> None:
    """Add this verb to the command line."""
    parser = verbs.add_parser(
        "doctor",
        help="say what this machine has, and what to do about it",
        usage="farandole doctor [options]",
        description="Says what this machine, or these hosts, have, with advice, and what to put into a bug report.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(execute=execute, parser=parser)
    add = parser.add_argument
    add("-H", "--hosts", metavar="NAME[:SLOTS],...", help="look at these hosts, through ssh")
    add("--hostfile", metavar="FILE", help="look at the hosts in this file: a name in each line, slots=N after it")
    add("--network", metavar="NAME,...", help="say whether hosts have these interfaces, addresses or networks (CIDR)")
    add("--python", metavar="PATH", help="Python on the other hosts (default: where this one is)")
    add("--import", dest="try_import", action="store_true", help="import every framework, in a process of its own")
    add("--json", action="store_true", help="print JSON instead of text")


def execute(options: argparse.Namespace) -> int:
    """Run the verb and return the exit code."""
    from farandole.launcher.errors import SpecError

    try:
        slots = _read_hosts(options)
    except SpecError as error:
        print(f"error: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return _USAGE_ERROR
    return diagnose(slots, options, _inspect(options))


def _inspect(options: argparse.Namespace) -> Inspect:
    from functools import partial

    from farandole.launcher.inspection import inspect_hosts

    return partial(inspect_hosts, try_import=options.try_import, python=options.python)


def diagnose(slots: Mapping[str, int | None], options: argparse.Namespace, inspect: Inspect) -> int:
    """Look at hosts, print what is to be said, and return the exit code.

    Args:
        slots: by name of a host, how many workers it is for, if known.
        options: of the command line.
        inspect: what asks hosts.
    """
    import socket

    from farandole.agent.inspect.facts import Facts
    from farandole.launcher.advice import Intent
    from farandole.launcher.differences import differences

    names = list(slots) or [socket.gethostname()]
    counts = [count for count in slots.values() if count is not None]
    networks = tuple(filter(None, (options.network or "").split(",")))
    intent = Intent(workers=sum(counts) if counts and len(counts) == len(slots) else None, networks=networks)
    hosts = inspect(names)
    findings = {name: _findings(found, intent) for name, found in hosts.items()}
    differing = differences({name: found for name, found in hosts.items() if isinstance(found, Facts)})
    if options.json:
        _print_json(hosts, findings, differing)
    elif len(hosts) == 1:
        _print_host(hosts, findings)
    else:
        _print_hosts(hosts, findings, differing)
    everything = [finding for found in (*findings.values(), differing) for finding in found]
    return _PROBLEM if any(finding.level == "problem" for finding in everything) else 0


def _findings(found: Facts | Silence, intent: Intent) -> list[Finding]:
    from farandole.launcher.advice import Finding, advise
    from farandole.launcher.inspection import Silence

    if isinstance(found, Silence):
        return [Finding("problem", "reach", found.why, found.hint)]
    return advise(found, intent)


def _print_host(hosts: Mapping[str, Facts | Silence], findings: Mapping[str, Sequence[Finding]]) -> None:
    from farandole.agent.inspect.facts import Facts
    from farandole.launcher.prescription import bug_report, render_findings, render_host, verdict

    ((name, facts),) = hosts.items()
    paint = _paint()
    if isinstance(facts, Facts):
        print(render_host(facts, findings[name], paint))
        print(bug_report(facts, findings[name], os.path.expanduser("~")), end="\n\n")
    else:
        print("\n".join([name, "", *render_findings(findings[name], paint)]))
    print(verdict(findings[name], paint))


def _print_hosts(
    hosts: Mapping[str, Facts | Silence], findings: Mapping[str, Sequence[Finding]], differing: Sequence[Finding]
) -> None:
    from farandole.launcher.prescription import render_findings, render_hosts, verdict

    paint = _paint()
    print(render_hosts(hosts, findings, paint))
    if differing:
        print("\n".join(render_findings(differing, paint)), end="\n\n")
    everything = [finding for found in (*findings.values(), differing) for finding in found]
    print(verdict(everything, paint))
    print("hint: farandole doctor -H HOST tells all about one host, and has a block for a bug report")


def _print_json(
    hosts: Mapping[str, Facts | Silence], findings: Mapping[str, Sequence[Finding]], differing: Sequence[Finding]
) -> None:
    import msgspec

    from farandole.agent.inspect.facts import Facts
    from farandole.launcher.advice import backends

    told: dict[str, dict[str, object]] = {}
    for name, found in hosts.items():
        told[name] = {"findings": findings[name]}
        if isinstance(found, Facts):
            told[name] |= {"facts": found, "backends": backends(found)}
    document = msgspec.json.encode({"hosts": told, "differences": differing})
    print(msgspec.json.format(document, indent=1).decode())


def _paint() -> Paint:
    from farandole.launcher.prescription import coloured, plain

    return coloured if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else plain


def _read_hosts(options: argparse.Namespace) -> dict[str, int | None]:
    """Return the hosts that are asked for, each with its slots if they are given.

    Raises:
        SpecError: the host file cannot be read, or slots are no number.
    """
    from farandole.launcher.errors import SpecError

    if options.hosts is not None:
        return dict(_read_host(word) for word in options.hosts.split(",") if word)
    if options.hostfile is None:
        return {}
    try:
        with open(options.hostfile) as file:
            lines = [line.partition("#")[0].split() for line in file]
    except OSError as error:
        raise SpecError(f"the host file cannot be read: {error}", "check the path") from None
    words = [f"{line[0]}{_slots_of(line[1:])}" for line in lines if line]
    return dict(map(_read_host, words))


def _slots_of(words: Sequence[str]) -> str:
    return next((f":{word.partition('=')[2]}" for word in words if word.startswith(("slots=", "max_slots="))), "")


def _read_host(word: str) -> tuple[str, int | None]:
    """Read `name`, `name:slots`, an IPv6 address, or `[address]:slots`."""
    from farandole.launcher.errors import SpecError

    if word.startswith("[") and "]" in word:
        name, _, rest = word[1:].partition("]")
        slots = rest.removeprefix(":")
    elif word.count(":") == 1:
        name, _, slots = word.partition(":")
    else:
        name, slots = word, ""
    if not name or (slots and not slots.isdecimal()):
        raise SpecError(f"{word!r} is not a host", "write -H name:slots,name:slots; an IPv6 address in brackets")
    return name, int(slots) if slots else None

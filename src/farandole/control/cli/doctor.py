"""`farandole doctor`: inspect this machine or a list of hosts, and explain how to solve problems."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from farandole.base.display.tables import wants_colour
from farandole.base.wire.encoding import format_json
from farandole.control.agent.inspect.facts import Facts
from farandole.control.cli import options
from farandole.control.cli.parser import Parser
from farandole.control.launcher.doctor import nccl_log
from farandole.control.launcher.doctor.advice import Intent, advise, backends
from farandole.control.launcher.doctor.differences import differences
from farandole.control.launcher.doctor.findings import Finding
from farandole.control.launcher.doctor.inspection import Inspect, Silence, inspect_hosts
from farandole.control.launcher.doctor.nccl_choice import choices
from farandole.control.launcher.doctor.rendering import (
    Paint,
    bug_report,
    coloured,
    plain,
    render_findings,
    render_host,
    render_hosts,
    verdict,
)
from farandole.control.launcher.job.host_list import Host
from farandole.errors import SpecError

_PROBLEM = 1

_EPILOG = """\
examples:
  farandole doctor                     this machine
  farandole doctor --import            also import every framework, which takes several seconds
  farandole doctor -H h1:4,h2:4        these hosts, checked through ssh, and their differences
  farandole doctor --nccl-log FILE     what NCCL used in a job that ran with NCCL_DEBUG=INFO

It only inspects; it changes nothing. The exit code is 0 when no problem was found, and 1 otherwise.
"""

_SHORT = {
    "workers and hosts": ("-np", "-H", "--hostfile"),
    "network": ("--network", "-p", "-i"),
    "output": ("--import", "--nccl-log", "--json", "--help-all"),
}


def add_options(parser: Parser) -> None:
    """Add the options of this verb, and the texts of its help."""
    parser.describe(
        execute,
        usage="farandole doctor [options]",
        description="Shows what this machine, or a list of hosts, has, with advice and a block for bug reports.",
        epilog=_EPILOG,
    )
    parser.shorten(_SHORT)
    options.add_hosts(parser)
    options.add_network(parser, starts_agents=False)
    add = parser.add_argument
    add("--import", dest="try_import", action="store_true", help="import every framework, in a separate process")
    add(
        "--nccl-log",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE",
        help="say what NCCL used, from what it wrote with NCCL_DEBUG=INFO, instead of inspecting a host",
    )
    add("--json", action="store_true", help="print JSON instead of text")


def execute(given: argparse.Namespace) -> int:
    """Run the verb and return the exit code."""
    if given.nccl_log:
        return read_nccl_logs(given.nccl_log, given.json)
    workers, hosts = _read_hosts(given)
    ssh = options.read_ssh(given)
    return diagnose(
        hosts,
        Intent(workers, networks=options.read_network(given)),
        partial(inspect_hosts, ssh=ssh, try_import=given.try_import),
        given.json,
    )


def _read_hosts(given: argparse.Namespace) -> tuple[int | None, tuple[Host, ...]]:
    """Return the number of workers to check for, if given, and the hosts; no hosts means this machine."""
    wanted = (given.num_proc, given.nproc_per_node, given.hosts, given.hostfile, given.include, given.exclude)
    if not any(wanted):
        return None, ()
    workers, hosts = options.read_hosts(given)
    return workers or sum(host.slots or 0 for host in hosts) or None, hosts


def diagnose(hosts: Sequence[Host], intent: Intent, inspect: Inspect, as_json: bool) -> int:
    """Inspect hosts, print the findings, and return the exit code.

    Args:
        hosts: the hosts to inspect; empty means this machine.
        intent: what the hosts are to be used for.
        inspect: the function that inspects hosts.
        as_json: whether to print JSON instead of text.
    """
    asked = hosts or (Host("localhost"),)
    told = inspect(asked)
    here = {host.label: host.slots for host in asked} if len(asked) > 1 else {asked[0].label: intent.workers}
    findings = {name: _findings(found, replace(intent, here=here[name])) for name, found in told.items()}
    differing = differences({name: found for name, found in told.items() if isinstance(found, Facts)})
    if as_json:
        _print_json(told, findings, differing)
    elif len(told) == 1:
        _print_host(told, findings)
    else:
        _print_hosts(told, findings, differing)
    everything = [finding for found in (*findings.values(), differing) for finding in found]
    return _PROBLEM if any(finding.level == "problem" for finding in everything) else 0


def _findings(found: Facts | Silence, intent: Intent) -> list[Finding]:
    if isinstance(found, Silence):
        return [Finding("problem", "reach", found.why, found.hint)]
    return advise(found, intent)


def _print_host(hosts: Mapping[str, Facts | Silence], findings: Mapping[str, Sequence[Finding]]) -> None:
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
    paint = _paint()
    print(render_hosts(hosts, findings, paint))
    if differing:
        print("\n".join(render_findings(differing, paint)), end="\n\n")
    everything = [finding for found in (*findings.values(), differing) for finding in found]
    print(verdict(everything, paint))
    print("hint: farandole doctor -H HOST shows everything about one host, with a block for a bug report")


def _print_json(
    hosts: Mapping[str, Facts | Silence], findings: Mapping[str, Sequence[Finding]], differing: Sequence[Finding]
) -> None:
    told: dict[str, dict[str, object]] = {}
    for name, found in hosts.items():
        told[name] = {"findings": findings[name]}
        if isinstance(found, Facts):
            told[name] |= {"facts": found, "backends": backends(found), "nccl": choices(found)}
    print(format_json({"hosts": told, "differences": differing}, indent=1))


def read_nccl_logs(paths: Sequence[Path], as_json: bool) -> int:
    """Print what files with NCCL's log say, and return the exit code.

    Args:
        paths: the files, of one or several processes of the same job.
        as_json: whether to print JSON instead of text.

    Raises:
        SpecError: a file cannot be read, or none has a line of NCCL.
    """
    log = nccl_log.parse(line for path in paths for line in _lines_of(path))
    if not log.lines:
        raise SpecError(
            f"there are no lines of NCCL in {', '.join(map(str, paths))}",
            "run the job with NCCL_DEBUG=INFO: farandole run -x NCCL_DEBUG=INFO --output-dir logs ...",
        )
    found = nccl_log.findings(log)
    if as_json:
        print(format_json({"log": nccl_log.describe(log), "findings": found}, indent=1))
    else:
        print("\n".join([*nccl_log.describe(log), "", *render_findings(found, _paint())]).strip(), end="\n\n")
        print(verdict(found, _paint()))
    return _PROBLEM if any(finding.level == "problem" for finding in found) else 0


def _lines_of(path: Path) -> Iterator[str]:
    try:
        with path.open(errors="replace") as file:
            yield from file
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror or error}", "name files that NCCL wrote to") from None


def _paint() -> Paint:
    return coloured if wants_colour() else plain

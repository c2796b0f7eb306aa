"""`farandole hosts`: list the hosts of an elastic job, or change them while it runs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from farandole.base.display.tables import show
from farandole.base.spelling import did_you_mean
from farandole.control.cli.job_verbs import print_json
from farandole.control.cli.parser import Parser
from farandole.control.launcher.daemon.client_protocol import AddHosts, Done, DrainHost, HostsAre, ListHosts, RemoveHost
from farandole.control.launcher.daemon.client_requests import ask
from farandole.control.launcher.daemon.jobs import jobs_of_this_user
from farandole.control.launcher.job.host_list import parse_hosts
from farandole.errors import SpecError

if TYPE_CHECKING:
    from farandole.control.launcher.supervise.control import HostRow

_USAGE = """\
farandole hosts [JOB]
       farandole hosts add HOST:SLOTS,... [--job JOB]
       farandole hosts drain HOST [--job JOB]
       farandole hosts remove HOST [--job JOB]"""

_EPILOG = """\
examples:
  farandole hosts                       list the hosts of the only running job
  farandole hosts add node[05-08]:8     let the job use these hosts as well
  farandole hosts drain node05          let the workers on this host finish their step and leave, then stop using it
  farandole hosts remove node05         stop using this host at once: its workers are killed
"""


def add_options(parser: Parser) -> None:
    """Add the options of this verb, and the texts of its help."""
    parser.describe(
        execute,
        usage=_USAGE,
        description="Lists the hosts of a running elastic job, adds hosts, or removes them.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "words", nargs="*", metavar="JOB | add | drain | remove", help="see above (default: list the hosts)"
    )
    parser.add_argument("--job", metavar="JOB", help="the job's name (default: the only running job)")
    parser.add_argument("--json", action="store_true", help="when listing: print JSON, for programs")


def execute(given: argparse.Namespace) -> int:
    """Run the verb and return the exit code."""
    name, requests = _read(given)
    directory, _ = jobs_of_this_user(os.environ).find(name)
    for request in requests:
        answer = ask(directory, request)
        if isinstance(answer, HostsAre):
            _print(answer.rows, given.json)
        elif isinstance(answer, Done):
            print(*answer.lines, sep="\n", file=sys.stderr)
    return 0


def _read(given: argparse.Namespace) -> tuple[str | None, Sequence[msgspec.Struct]]:
    """Return the name of the job, if given, and the requests to send to it.

    Raises:
        SpecError: the words are not a valid request.
    """
    first, rest = (given.words[0], given.words[1:]) if given.words else ("", [])
    if first not in ("add", "drain", "remove"):
        if rest or (first and given.job):
            meant = did_you_mean(first, ("add", "drain", "remove")) or "one of these:"
            words = " ".join(given.words)
            raise SpecError(f"farandole hosts {words}: unknown action", f"{meant} add, drain or remove HOST")
        return first or given.job, [ListHosts()]
    if not rest:
        raise SpecError(f"farandole hosts {first}: the host is missing", f"farandole hosts {first} node05")
    text = ",".join(rest)
    hosts = parse_hosts(text)  # Invalid text is rejected here, with a full message.
    if first == "add":
        return given.job, [AddHosts(text)]
    request = DrainHost if first == "drain" else RemoveHost
    return given.job, [request(host.label) for host in hosts]


def _print(rows: Sequence[HostRow], as_json: bool) -> None:
    if as_json:
        print_json(msgspec.to_builtins(rows))
        return

    lines = [(row.name, str(row.slots), " ".join(map(str, row.workers)) or "-", row.state) for row in rows]
    show([("host", "slots", "workers", "state"), *lines])

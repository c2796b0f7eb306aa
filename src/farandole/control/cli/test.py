"""`farandole test`: check whether jobs work on this machine or on several hosts, and how fast the links are."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from farandole.base.self_test.matrix import render
from farandole.base.self_test.report import SelfTestReport
from farandole.base.self_test.verdict import judge
from farandole.base.wire.encoding import format_json
from farandole.control.cli import options
from farandole.control.cli.parser import Parser
from farandole.control.cli.run import interrupted, run_until_end
from farandole.control.launcher.job.machine import look
from farandole.control.launcher.job.spec import LaunchSpec
from farandole.control.launcher.job.worker_settings import with_start_timeout

if TYPE_CHECKING:
    from farandole.control.launcher.supervise.outcome import JobOutcome

_NOT_GOOD = 1

_EPILOG = """\
examples:
  farandole test -np 2
  farandole test -H h1:2,h2:2
  farandole test -H node[01-16]:8 --quick --json

It starts a small job, which needs no framework: every collective is compared with the expected result, and every link
is measured. The exit code is 0 when everything is good, and 1 when something is wrong or slow.
"""

_SHORT = {
    "workers and hosts": ("-np", "-H", "--hostfile"),
    "network": ("--network", "-p", "-i"),
    "the test": ("--quick", "--transport", "--json", "--verbose", "--help-all"),
}


def add_options(parser: Parser) -> None:
    """Add the options of this verb, and the texts of its help."""
    parser.describe(
        execute,
        usage="farandole test [-np N] [-H HOST:SLOTS,...] [options]",
        description="Starts a small job on this machine or several, checks every collective, and measures the links.",
        epilog=_EPILOG,
    )
    parser.shorten(_SHORT)
    options.add_hosts(parser)
    options.add_network(parser)
    add = parser.add_argument
    add("--quick", action="store_true", help="make fewer checks and shorter measurements")
    add("--transport", choices=("auto", "shm", "tcp"), help="how workers exchange data (default: auto)")
    add("-x", dest="exports", action="append", default=[], metavar="NAME[=VALUE]", help="set a worker's variable")
    add("--no-preflight", action="store_true", help="do not check the hosts before the workers start")
    add("--json", action="store_true", help="print JSON instead of text")
    add("--verbose", action="store_true", help="print the plan and every decision about an elastic job")


def execute(given: argparse.Namespace) -> int:
    """Run the verb and return the exit code."""
    # The job needs none of the user's files, so this folder need not exist on the other hosts.
    machine = replace(look(), directory="/")
    try:
        outcome = run_until_end(_read(given), machine, verbose=given.verbose)
    except KeyboardInterrupt:
        return interrupted()
    return _report(outcome, given.json)


def _read(given: argparse.Namespace) -> LaunchSpec:
    num_proc, hosts = options.read_hosts(given)
    return LaunchSpec(
        command=(sys.executable, "-m", "farandole.worker.observe.self_test", "quick" if given.quick else "thorough"),
        num_proc=num_proc,
        hosts=hosts,
        ssh=options.read_ssh(given),
        network=options.read_network(given),
        preflight=not given.no_preflight,
        settings=with_start_timeout({} if given.transport is None else {"transport": given.transport}, os.environ),
        exports=tuple(given.exports),
    )


def _report(outcome: JobOutcome, as_json: bool) -> int:
    """Print the result, and return the exit code."""
    if outcome.exit_code:
        print(outcome.report, file=sys.stderr)
        # There is no report if the user has ended the job.
        return _NOT_GOOD if outcome.report else outcome.exit_code

    report = msgspec.json.decode(outcome.results[0] or b"", type=SelfTestReport)
    findings = judge(report)
    if as_json:
        print(format_json({"report": report, "findings": findings, "good": not findings}, indent=1))
    else:
        print(render(report, findings), end="")
    return _NOT_GOOD if findings else 0

"""`farandole simulate`: show what scheduling policies would do with the jobs of a trace."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from farandole.control.cli.parser import Parser
from farandole.control.scheduler.errors import SchedulerError
from farandole.control.simulator.predictors import PREDICTIONS
from farandole.errors import SpecError

_EPILOG = """\
examples:
  farandole simulate --demo                            synthetic jobs, under some policies
  farandole simulate --demo --policy fcfs,adaptive --plot page.html
  farandole simulate --trace jobs.swf --cluster 64x1 --policy fcfs,easy,conservative
  farandole simulate --trace DIR --profiles profiles.tar.xz --cluster aws:6x4,dgx-ext:2x8,rtx:3x8 --policy adaptive
  farandole simulate --policies                        list the policies, and the parts they are composed of

Traces are tables of jobs (name, time, application, num_replicas, batch_size) with profiles of their applications, or
files of the Parallel Workloads Archive (.swf). How the policies work: docs/explanation/scheduling.md.
"""

_SHORT = {
    "jobs": ("--trace", "--profiles", "--demo"),
    "cluster and policies": ("--cluster", "--policy", "--policies"),
    "result": ("--plot", "--json", "--help-all"),
}


def add_options(parser: Parser) -> None:
    """Add the options of this verb, and the texts of its help."""
    parser.describe(
        execute,
        usage="farandole simulate (--trace FILE|DIR | --demo) [--policy NAME,...] [--cluster TYPE:NODESxSLOTS,...] ...",
        description="Simulates how the jobs of a trace would share a cluster under scheduling policies.",
        epilog=_EPILOG,
    )
    parser.shorten(_SHORT)
    add = parser.add_argument
    add("--trace", type=Path, metavar="FILE|DIR", help="the jobs; a directory or an archive means all workloads in it")
    add("--profiles", type=Path, metavar="DIR|TAR", help="profiles of the applications (default: beside the trace)")
    add("--demo", action="store_true", help="synthetic jobs and profiles instead of a trace")
    add(
        "--cluster",
        metavar="TYPE:NODESxSLOTS,...",
        help="such as aws:6x4,dgx-ext:2x8 (default: one that fits the jobs)",
    )
    add(
        "--policy",
        default="fcfs,easy,srtf,adaptive",
        metavar="NAME,...",
        help="policies to compare (default: %(default)s)",
    )
    add("--policies", action="store_true", help="list the policies and exit")
    add("--only", metavar="WORKLOAD,...", help="simulate only these workloads")
    add(
        "--interval",
        type=float,
        metavar="S",
        help="seconds between decisions (default: 60; for .swf 0: decide at every event)",
    )
    add("--restart", type=float, metavar="S", help="seconds that each restart costs (default: from the profiles)")
    add("--predict", choices=PREDICTIONS, default="history", help="what policies may know (default: %(default)s)")
    add("--fixed-batches", action="store_true", help="no job changes its batch size")
    add("--fixed-sizes", action="store_true", help="each job gets exactly the number of slots that it asked for")
    add(
        "--quantum",
        type=float,
        default=3600.0,
        metavar="S",
        help="seconds of a time slice of round robin (default: %(default)g)",
    )
    add(
        "--ageing",
        type=float,
        default=3600.0,
        metavar="S",
        help="seconds of waiting that count as one level of priority (default: %(default)g)",
    )
    add(
        "--queue",
        action="append",
        default=[],
        metavar="NAME:KEY=VALUE,...",
        help="a queue; keys: parent, weight, quota, limit",
    )
    add("--jobs", type=int, default=160, metavar="N", help="number of jobs of --demo (default: %(default)d)")
    add("--seed", type=int, default=0, metavar="N", help="seed of the synthetic jobs (default: %(default)d)")
    add("--save-demo", type=Path, metavar="DIR", help="also write the synthetic profiles and jobs to this directory")
    add("--plot", type=Path, metavar="FILE", help="write charts to this file: .html, .svg or .png")
    add("--json", action="store_true", help="print JSON, with all figures and each job, instead of a table")


def execute(options: argparse.Namespace) -> int:
    """Run the verb and return the exit code."""
    try:
        from farandole.control.simulator import simulate
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("numpy", "scipy"):
            raise
        raise SpecError(f"the simulator needs {error.name}", "pip install 'farandole[scheduler]'") from error
    try:
        return simulate.run(options, sys.stdout, sys.stderr)
    except SchedulerError as error:
        raise SpecError(error.message, error.hint) from error

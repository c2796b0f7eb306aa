"""`farandole dashboard`: serve a page about jobs to the browser."""

from __future__ import annotations

import argparse
import os

from farandole.base.metrics.address import MetricsAddress
from farandole.control.cli.job_verbs import PLACES_HELP, warn_of_place
from farandole.control.cli.parser import Parser
from farandole.control.dashboard.sources import PlaceSource, source_for
from farandole.control.jobs.errors import Refused

_EPILOG = """\
examples:
  farandole dashboard                          all jobs of this machine, or of its queue
  farandole dashboard otter-12                 one job
  farandole dashboard http://127.0.0.1:9478    the job that serves its metrics there (farandole run --metrics)

The page is read-only. Anyone who has the token in the printed address can open it; set FARANDOLE_DASHBOARD_TOKEN to use
the same token each time. The page is served on the loopback interface: to open it from another machine, run
ssh -L 8478:localhost:8478 HOST there.
"""


def add_options(parser: Parser) -> None:
    """Add the options and help texts of this command."""
    parser.describe(
        execute,
        usage="farandole dashboard [JOB | URL] [--on PLACE] [--host HOST] [--port PORT]",
        description="Serves a page that shows jobs: their ranks, the slow ones, events, and output.",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add(
        "job",
        nargs="?",
        metavar="JOB",
        help="the job's name, or the address of its metrics (default: the list of jobs)",
    )
    add("--on", metavar="PLACE", help=PLACES_HELP)
    add(
        "--host",
        metavar="HOST",
        default="127.0.0.1",
        help="address to listen on (default: 127.0.0.1, this machine only)",
    )
    add("--port", metavar="PORT", type=int, default=8478, help="port to listen on; 0: any free port (default: 8478)")


def execute(given: argparse.Namespace) -> int:
    """Run the verb and return the exit code."""
    if not 0 <= given.port < 65536:
        raise Refused(f"--port {given.port} is not a valid port", "use 0 to 65535")
    try:
        from farandole.control.dashboard.serve import serve
    except ModuleNotFoundError as error:
        hint = "pip install 'farandole[dashboard]'"
        raise Refused(f"the dashboard needs {error.name}, which is not installed", hint) from None
    source = source_for(given.job, given.on, warn=warn_of_place)
    name = given.job or ""
    if isinstance(source, PlaceSource):
        if name:
            source.view(name, 0)  # An unknown name is reported here, not in the browser.
    else:
        name = source.jobs()[0].name
    serve(source, name, MetricsAddress(given.host, given.port), os.environ.get("FARANDOLE_DASHBOARD_TOKEN", ""))
    return 0

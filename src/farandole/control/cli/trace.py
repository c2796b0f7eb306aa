"""`farandole trace summary`: summarize the timeline of a training job."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from farandole.base.trace.summary_text import as_plain, html_of, text_of
from farandole.base.trace.trace_summary import read_trace, summarize
from farandole.control.cli.parser import Parser
from farandole.errors import SpecError

_EPILOG = """\
examples:
  farandole trace summary timeline.json                  overlap, stragglers, the ten longest waits
  farandole trace summary timeline.pftrace --html t.html   the same as a drawing, in one file

A timeline is a file that farandole run --timeline FILE has written, in Chrome's or Perfetto's format. An elastic job
writes a separate file after each change of its world.
"""


def add_options(parser: Parser) -> None:
    """Add the options of this verb, and the texts of its help."""
    parser.describe(
        execute,
        usage="farandole trace summary FILE [--json] [--html FILE]",
        description="Shows how much communication is hidden, which rank the others wait for, and what took longest.",
        epilog=_EPILOG,
    )
    parser.add_argument("what", metavar="summary", choices=("summary",), help="the only action")
    parser.add_argument("file", metavar="FILE", help="the timeline")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs; times are seconds")
    parser.add_argument("--html", metavar="FILE", help="also write the summary as one HTML page")


def execute(given: argparse.Namespace) -> int:
    """Run the verb and return the exit code."""
    try:
        summary = summarize(read_trace(Path(given.file)))
    except OSError as error:
        raise SpecError(f"{given.file} cannot be read: {error.strerror or error}", "check the path") from None
    except (ValueError, KeyError, TypeError) as error:
        hint = "farandole run --timeline FILE writes one; its name says the format: .json, .pftrace"
        raise SpecError(f"{given.file} is not a timeline of farandole: {error}", hint) from None
    if not summary.calls:
        raise SpecError(f"{given.file} has no complete collective", "record for longer: at least one step on all ranks")
    if given.html:
        try:
            Path(given.html).write_text(html_of(summary, Path(given.file).name))
        except OSError as error:
            raise SpecError(f"{given.html} cannot be written: {error.strerror or error}", "check the path") from None
        print(f"farandole: the drawing is in {given.html}", file=sys.stderr)
    print(json.dumps(as_plain(summary), indent=2) if given.json else "\n".join(text_of(summary)))
    return 0

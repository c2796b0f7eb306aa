"""`farandole man`: print the manual page of this command, generated from its parsers."""

from __future__ import annotations

import argparse

from farandole.base.installed import own_version
from farandole.control.cli.main import make_parser
from farandole.control.cli.parser import Parser
from farandole.errors import SpecError

_EPILOG = """\
examples:
  farandole man | man -l -                                         read the page
  farandole man > ~/.local/share/man/man1/farandole.1              install it for man farandole
"""


def add_options(parser: Parser) -> None:
    """Add the options of this verb, and the texts of its help."""
    parser.describe(
        execute,
        usage="farandole man",
        description="Prints the manual page of farandole and all its verbs, in the format of man.",
        epilog=_EPILOG,
    )


def execute(given: argparse.Namespace) -> int:
    """Run the verb and return the exit code."""
    print(page(), end="")
    return 0


def page() -> str:
    """Return the manual page in roff format.

    Raises:
        SpecError: the library that generates it is not installed.
    """
    try:
        from argparse_manpage.manpage import Manpage
    except ModuleNotFoundError:
        raise SpecError("the manual page needs the package argparse-manpage", "pip install 'farandole[cli]'") from None
    data = {
        "project_name": "farandole",
        "version": own_version(),
        "manual_title": "farandole",
        "description": "run training scripts on several workers",
    }
    return str(Manpage(make_parser(), data))

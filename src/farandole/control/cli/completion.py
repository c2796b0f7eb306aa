"""`farandole completion`: print the script by which a shell completes this command's verbs, options and values."""

from __future__ import annotations

import argparse
from typing import Any

from farandole.control.cli.main import make_parser
from farandole.control.cli.parser import Parser
from farandole.errors import SpecError

SHELLS = ("bash", "zsh", "fish")

_EPILOG = """\
once, for all later shells:
  bash  farandole completion bash > ~/.local/share/bash-completion/completions/farandole
  zsh   farandole completion zsh > DIR/_farandole      DIR is one of the directories of $fpath
  fish  farandole completion fish > ~/.config/fish/completions/farandole.fish

for this shell only: source <(farandole completion bash)

The printed script belongs to this version of farandole: print it again after an update.
"""


def add_options(parser: Parser) -> None:
    """Add the options of this verb, and the texts of its help."""
    parser.describe(
        execute,
        usage="farandole completion bash|zsh|fish",
        description="Prints a script by which a shell completes verbs, options and values of farandole.",
        epilog=_EPILOG,
    )
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash, zsh or fish")


def execute(given: argparse.Namespace) -> int:
    """Run the verb and return the exit code."""
    print(script(given.shell), end="")
    return 0


def script(shell: str) -> str:
    """Return the completion script for a shell.

    Raises:
        SpecError: the library that generates it is not installed.
    """
    try:
        import shtab
    except ModuleNotFoundError:
        raise SpecError("completion needs the package shtab", "pip install 'farandole[cli]'") from None
    parser = make_parser()
    _complete_paths(parser, shtab)
    text: str = shtab.complete(parser, shell)
    return text.rstrip("\n") + "\n"


def _complete_paths(parser: argparse.ArgumentParser, shtab: Any) -> None:
    """Let the shell complete values that are files or directories, and the command of `farandole run` as a file."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                _complete_paths(verb, shtab)
        elif action.choices is None and action.nargs != 0:
            metavar = str(action.metavar or action.dest)
            if "FILE" in metavar or action.nargs == argparse.REMAINDER:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
            elif metavar in ("DIR", "PATH"):
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]

"""`farandole init`: show or make the changes that distribute a training script written for one process."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from farandole.control.cli.parser import Parser
from farandole.control.rewriting.refusal import NotUnderstood
from farandole.control.rewriting.rewrite import rewrite
from farandole.errors import SpecError

_NOT_UNDERSTOOD = 1

_EPILOG = """\
examples:
  farandole init train.py             show the changes, as a unified diff
  farandole init train.py --write     make the changes
  farandole init train.py | patch     also make the changes

It reads the script and executes nothing. It knows the usual training loops of PyTorch, TensorFlow, Keras (fit) and
JAX, and does not change a script that it does not fully understand: it lists the lines, the reasons, and the changes to
make by hand. N workers together process batches that are N times as large, and the learning rate stays the same: a
script may train better with a larger one, or with --keep-batch, which divides the batch size by the number of workers.
"""


def add_options(parser: Parser) -> None:
    """Add the options of this verb, and the texts of its help."""
    parser.describe(
        execute,
        usage="farandole init SCRIPT [--write] [--keep-batch]",
        description="Shows the changes that make a training script for one process run on several workers.",
        epilog=_EPILOG,
    )
    parser.add_argument("script", type=Path, metavar="SCRIPT", help="a Python file")
    parser.add_argument(
        "--keep-batch",
        action="store_true",
        help="divide the batch size by the number of workers, so the global batch size stays the same",
    )
    parser.add_argument("--write", action="store_true", help="change the file instead of showing the change")


def execute(given: argparse.Namespace) -> int:
    """Run the verb and return the exit code."""
    try:
        result = rewrite(_read(given.script), given.keep_batch)
    except NotUnderstood as error:
        return _refuse(given.script, error)
    if not result.framework:
        print(
            f"farandole: {given.script} is already distributed: it averages gradients and gives each worker a part of "
            "the data",
            file=sys.stderr,
        )
        return 0
    if given.write:
        _write(given.script, result.after)
    else:
        print(result.diff(str(given.script)), end="")
    for note in result.notes:
        print(f"note: {note}", file=sys.stderr)
    done = "is now distributed" if given.write else "is unchanged; farandole init --write changes it"
    print(f"farandole: {given.script} ({result.framework}) {done}", file=sys.stderr)
    print(f"hint: {'' if given.write else 'then '}farandole run -np 2 python {given.script}", file=sys.stderr)
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}", "give the path of a training script") from None
    except UnicodeDecodeError:
        raise SpecError(f"{path} is not UTF-8 text", "give the path of a training script") from None


def _write(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.farandole")
    try:
        draft.write_bytes(text.encode())
        draft.chmod(path.stat().st_mode & 0o7777)
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise SpecError(f"{path} cannot be written: {error.strerror}", "the file is unchanged") from None


def _refuse(path: Path, error: NotUnderstood) -> int:
    print(f"error: {path} was not changed, because these lines are not understood:", file=sys.stderr)
    for each in error.refusals:
        print(f"  {path}:{each.line}: {each.reason}\n      by hand: {each.by_hand}", file=sys.stderr)
    print("hint: change these lines and try again, or distribute the script by hand", file=sys.stderr)
    return _NOT_UNDERSTOOD

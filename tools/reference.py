"""Write the pages of the reference that follow from the code: functions from docstrings, commands from the parsers.

The build of the site calls it (docs/conf.py). What it writes, in docs/reference/generated, is not in the repository.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "reference" / "generated"
# Modules whose public names are shown, and the titles of their pages. Other front ends have the same functions
# for their tensors, and loading every framework would take longer than the rest of the build.
MODULES = {
    "farandole.torch": "Functions for PyTorch",
    "farandole.torch.elastic": "Elastic training with PyTorch",
    "farandole.numpy": "Functions for NumPy",
}
_SECTION = re.compile(r"^(Args|Returns|Raises|Attributes|Example|Examples|Yields|Note):\s*$", re.MULTILINE)


def public_names(module: ModuleType) -> list[str]:
    """Return the names of a module that a user may use, in their order there."""
    declared = getattr(module, "__all__", None)
    names = declared if declared is not None else [name for name in vars(module) if not name.startswith("_")]
    return [
        name for name in names if not inspect.ismodule(getattr(module, name)) and name not in {"Any", "annotations"}
    ]


def signature(name: str, value: object) -> str:
    """Return how something is called, or only its name where Python cannot tell."""
    try:
        return f"{name}{inspect.signature(value)}"  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return name


def prose(docstring: str) -> str:
    """Return a docstring as Markdown: its sections in bold, their entries as they stand, in a block."""
    parts = _SECTION.split(inspect.cleandoc(docstring))
    text = [parts[0].strip()]
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        text += [f"**{title}**", f"~~~text\n{inspect.cleandoc(body).strip()}\n~~~"]
    return "\n\n".join(text)


def entry(name: str, value: object, level: int) -> Iterator[str]:
    """Yield the heading, the signature and the text of one name; of a class, its public methods too."""
    yield f"{'#' * level} `{name}`"
    if not callable(value):
        yield f"~~~python\n{name} = {value!r}\n~~~" if isinstance(value, (int, str)) else ""
        return
    yield f"~~~text\n{signature(name, value)}\n~~~"
    yield prose(getattr(value, "__doc__", None) or "")
    if inspect.isclass(value):
        for method, function in vars(value).items():
            if not method.startswith("_") and inspect.isfunction(function) and function.__doc__:
                yield from entry(f"{name}.{method}", function, level + 1)


def module_page(name: str, title: str) -> str:
    """Return the page of a module."""
    module = importlib.import_module(name)
    parts = [f"# {title}", f"`import {name} as hvd`" if name.count(".") == 1 else f"`{name}`"]
    for public in public_names(module):
        parts += entry(public, getattr(module, public), 2)
    return "\n\n".join(part for part in parts if part) + "\n"


def command_page() -> str:
    """Return the page of the command line: the help of each verb, and of the verbs below it."""
    from farandole.cli.main import make_parser

    parts = ["# Command line", "What `--help` prints, of every command."]
    for words, parser in _parsers("farandole", make_parser()):
        parts += [f"## `{words}`", f"~~~text\n{parser.format_help().rstrip()}\n~~~"]
    return "\n\n".join(parts) + "\n"


def _parsers(words: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield words, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb, below in action.choices.items():
                yield from _parsers(f"{words} {verb}", below)


def newest(folder: Path) -> float:
    """Return when the newest source below a folder was written."""
    return max(path.stat().st_mtime for path in folder.rglob("*.py*"))


def main() -> None:
    """Write the pages, unless they are newer than all sources."""
    os.environ["COLUMNS"] = "100"  # argparse's width, so that the page is the same in every terminal
    os.environ["NO_COLOR"] = "1"
    FOLDER.mkdir(parents=True, exist_ok=True)
    last = FOLDER / "commands.md"
    if last.exists() and last.stat().st_mtime > max(newest(ROOT / "src" / "farandole"), Path(__file__).stat().st_mtime):
        return
    for name, title in MODULES.items():
        (FOLDER / f"{name.removeprefix('farandole.').replace('.', '_')}.md").write_text(module_page(name, title))
    last.write_text(command_page())


if __name__ == "__main__":
    sys.exit(main())

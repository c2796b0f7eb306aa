"""Write the generated pages of the reference: functions from docstrings, commands from the parsers.

The build of the site calls this (docs/conf.py). The pages, in docs/reference/generated, are not in the repository.
Modules are parsed and not imported, so a page is the same whether its framework is installed or not.
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import griffe

if __package__:
    from tools import messages
else:  # The build of the site calls it by its path.
    import messages

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "reference" / "generated"
_SECTION = re.compile(r"^(Args|Returns|Raises|Attributes|Example|Examples|Yields|Note):\s*$", re.MULTILINE)


class Page(NamedTuple):
    """A page of the reference.

    Attributes:
        title: the heading.
        intro: the text below the heading.
        modules: the modules whose public names the page shows; for some, only the listed names.
    """

    title: str
    intro: str
    modules: dict[str, tuple[str, ...]]


def _front_end(framework: str, package: str, elastic: bool = True) -> dict[str, Page]:
    intro = f"`import farandole.{package} as hvd`"
    pages = {package: Page(f"Functions for {framework}", intro, {f"farandole.{package}": ()})}
    if elastic:
        modules: dict[str, tuple[str, ...]] = {f"farandole.{package}.elastic": ()}
        pages[f"{package}_elastic"] = Page(
            f"Elastic training with {framework}", f"{intro}, then `hvd.elastic`", modules
        )
    return pages


# By file, without its ending. A test compares their names with those of the modules.
PAGES = {
    **_front_end("PyTorch", "torch"),
    **_front_end("TensorFlow", "tensorflow"),
    **_front_end("Keras", "keras"),
    "keras_callbacks": Page(
        "Callbacks for Keras",
        "`import farandole.keras as hvd`, then `hvd.callbacks`",
        {"farandole.keras.callbacks": ()},
    ),
    **_front_end("JAX", "jax"),
    "jax_orbax": Page(
        "Checkpoints in Orbax's format",
        "`import farandole.jax as hvd`, then `hvd.orbax`",
        {"farandole.jax.orbax": ("save", "restore")},
    ),
    **_front_end("NumPy", "numpy", elastic=False),
    **_front_end("MXNet", "mxnet", elastic=False),
    "jobs": Page(
        "Jobs from Python",
        "`farandole.run` calls a function on workers of this machine or of others and waits; `farandole.submit` gives "
        "a job to a queue, a cluster or this machine.",
        {
            "farandole": ("run", "submit", "count_step"),
            "farandole.control.jobs.handle": ("JobHandle", "FunctionHandle", "JobFailed"),
            "farandole.control.jobs.status": ("JobState", "JobStatus"),
            "farandole.control.jobs.spec": ("JobSpec", "Workers"),
            "farandole.control.jobs.errors": (
                "JobError",
                "BadSpec",
                "UnknownJob",
                "NotAllowed",
                "Refused",
                "Unreachable",
            ),
        },
    ),
    "elastic_loop": Page(
        "The elastic loop",
        "What `hvd.elastic.steps` returns, and what all front ends share.",
        {
            "farandole.worker.elastic.step_loop": ("Loop",),
            "farandole.worker.elastic.batches": (
                *("ConstantGlobalBatch", "ConstantWorkerBatch"),
                *("KeepRate", "LinearScaling", "ScaledBy"),
            ),
            "farandole.worker.elastic.state": ("State", "ObjectState"),
        },
    ),
    "observing": Page(
        "Logging and trackers",
        "Functions that pass data from a script to other tools: [metrics](../../how-to/metrics.md).",
        {
            "farandole.observe.trackers": ("Reporter",),
            "farandole.worker.core.json_log": ("JsonFormatter",),
        },
    ),
    "testing": Page(
        "Worlds for tests",
        "Workers in which a test calls functions; see [testing](../../how-to/testing.md).",
        {"farandole.testing": ()},
    ),
}


# --- names -------------------------------------------------------------------------------------------------------


def load(source: Path = ROOT / "src") -> griffe.Module:
    """Return the package, parsed from its sources."""
    loader = griffe.GriffeLoader(search_paths=[source], allow_inspection=False)
    package = loader.load("farandole")
    loader.resolve_aliases(implicit=False, external=False)
    assert isinstance(package, griffe.Module)
    return package


def module_of(package: griffe.Module, name: str) -> griffe.Module:
    """Return a module of the package by its full name."""
    found = package if name == package.path else package[name.removeprefix(f"{package.path}.")]
    assert isinstance(found, griffe.Module)
    return found


def public_names(package: griffe.Module, module: griffe.Module, listed: tuple[str, ...]) -> list[str]:
    """Return the names of a module that a page shows: those listed, or all public ones that are not modules."""
    names = [str(name) for name in listed or module.exports or ()]
    return [name for name in names if not name.startswith("__") and not member(package, module, name).is_module]


def member(package: griffe.Module, module: griffe.Module, name: str) -> griffe.Object | griffe.Alias:
    """Return the object with a name in a module; if a module and a function have the name, the one that is imported
    last.

    Functions that are generated when their module is imported are only in its stub, which griffe's wildcards ignore.
    """
    found = module.members.get(name) or module["_functions"].members[name]
    path = module.imports.get(name, "")
    if found.is_module and path.startswith(f"{found.path}."):
        return package[path.removeprefix(f"{package.path}.")]
    return found


def resolve(package: griffe.Module, found: griffe.Object | griffe.Alias) -> griffe.Object | griffe.Alias:
    """Return the object behind a name: the function for `name = decorator(function)`."""
    value = getattr(found, "value", None)
    if found.docstring is None and isinstance(value, griffe.ExprCall) and value.arguments:
        inner = value.arguments[0]
        path = inner.canonical_path if isinstance(inner, griffe.Expr) else ""
        if path.startswith(f"{package.path}."):
            return package[path.removeprefix(f"{package.path}.")]
    return found


# --- text --------------------------------------------------------------------------------------------------------


def prose(docstring: str) -> str:
    """Return a docstring as Markdown: the titles of its sections in bold, their entries unchanged in a block."""
    parts = _SECTION.split(inspect.cleandoc(docstring))
    text = [parts[0].strip()]
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        text += [f"**{title}**", f"~~~text\n{inspect.cleandoc(body).strip()}\n~~~"]
    return "\n\n".join(text)


def signature(name: str, function: griffe.Function) -> str:
    """Return the signature of a function, on one line or with a line for each argument."""
    shown = function.signature(name=name)
    if len(shown) <= 100:
        return shown
    arguments = [f"    {argument}," for argument in _arguments(function)]
    returns = f" -> {function.returns}" if function.returns is not None else ""
    return "\n".join([f"{name}(", *arguments, f"){returns}"])


def _arguments(function: griffe.Function) -> Iterator[str]:
    star = False
    for each in function.parameters:
        prefix = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(each.kind, "")
        if each.kind is griffe.ParameterKind.keyword_only and not star:
            yield "*"
        star = star or each.kind in (griffe.ParameterKind.var_positional, griffe.ParameterKind.keyword_only)
        annotation = f": {each.annotation}" if each.annotation is not None else ""
        default = f" = {each.default}" if each.default is not None and not prefix else ""
        yield f"{prefix}{each.name}{annotation}{default}"


def entry(package: griffe.Module, name: str, given: griffe.Object | griffe.Alias, level: int) -> Iterator[str]:
    """Yield the heading, the signature and the text of one name; for a class, also its public methods."""
    found = resolve(package, given)
    target = found.final_target if isinstance(found, griffe.Alias) else found
    yield f"{'#' * level} `{name}`"
    text = [target.docstring.value] if target.docstring else []
    if isinstance(target, griffe.Function):
        shown = (target.overloads and target.overloads[-1]) or target
        yield f"~~~text\n{signature(name.rpartition('.')[2], shown)}\n~~~"
    elif isinstance(target, griffe.Class):
        made = target.members.get("__init__")
        if isinstance(made, griffe.Function):
            del_self = griffe.Parameters(*list(made.parameters)[1:])
            call = griffe.Function(name, parameters=del_self)
            yield f"~~~text\n{signature(name, call)}\n~~~"
            text += [made.docstring.value] if made.docstring else []
    elif isinstance(target, griffe.Attribute) and level == 2 and isinstance(target.value, str):
        yield f"~~~text\n{name} = {target.value}\n~~~"
    yield from (prose(each) for each in text)
    if isinstance(target, griffe.Class):
        for method, below in target.members.items():
            if not method.startswith("_") and not below.is_alias and below.docstring:
                yield from entry(package, f"{name}.{method}", below, level + 1)


def module_page(package: griffe.Module, page: Page) -> str:
    """Return the text of a page."""
    parts = [f"# {page.title}", page.intro]
    for path, listed in page.modules.items():
        module = module_of(package, path)
        for name in public_names(package, module, listed):
            parts += entry(package, name, member(package, module, name), 2)
    return "\n\n".join(part for part in parts if part) + "\n"


def command_page() -> str:
    """Return the page of the command line: the help of each verb, and of its subcommands."""
    from farandole.control.cli.main import make_parser

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


def error_entries() -> list[str]:
    """Return the classes of errors that have an entry on the page of errors."""
    page = (ROOT / "docs" / "reference" / "errors.md").read_text()
    return re.findall(r"^## (\w+)$", page, re.MULTILINE)


def newest(folder: Path) -> float:
    """Return the time at which the newest source below a folder was written."""
    return max(path.stat().st_mtime for path in folder.rglob("*.py*"))


def main() -> None:
    """Write the pages, unless they are newer than all sources."""
    os.environ["COLUMNS"] = "100"  # argparse's width, so that the page is the same in every terminal
    os.environ["NO_COLOR"] = "1"
    FOLDER.mkdir(parents=True, exist_ok=True)
    last = FOLDER / "commands.md"
    if last.exists() and last.stat().st_mtime > max(newest(ROOT / "src" / "farandole"), Path(__file__).stat().st_mtime):
        return
    package = load()
    found = list(messages.messages(ROOT / "src" / "farandole"))
    (FOLDER / "messages.md").write_text(messages.page(found, error_entries()))
    for name, page in PAGES.items():
        (FOLDER / f"{name}.md").write_text(module_page(package, page))
    last.write_text(command_page())


if __name__ == "__main__":
    sys.exit(main())

"""The page of the reference with all error messages, extracted from the sources.

Values that are inserted when an error is raised are shown as `...`. Each message says what is wrong and what to do; the
page of errors has the cause and the remedy of its class.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple


class Message(NamedTuple):
    """A message of an error.

    Attributes:
        error: the class.
        text: the message, with `...` for inserted values.
        room: the package below farandole whose sources raise it.
    """

    error: str
    text: str
    room: str


def messages(package: Path) -> Iterator[Message]:
    """Yield the messages of all errors that the sources raise with a text."""
    for file in sorted(package.rglob("*.py")):
        room = _room(file.relative_to(package))
        for node in _statements(ast.parse(file.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                text = text_of(node.exc.args[0])
                if re.search(r"[a-z]{2}", text):
                    yield Message(_name(node.exc.func), text, room)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements below a node, without their expressions, which are most of a tree."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)):
            yield child
            yield from _statements(child)


def _room(file: Path) -> str:
    """Return the package of a source file; in `base`, `control` and `worker`, the subpackage."""
    within = file.parts[0] in ("base", "control", "worker") and len(file.parts) > 1
    return file.parts[1 if within else 0].removesuffix(".py")


def text_of(node: ast.expr) -> str:
    """Return a text from its expression, with `...` for inserted values; "" for an expression that is not a text.

    Example:
        >>> text_of(ast.parse("f'rank {rank} is lost'", mode="eval").body)
        'rank ... is lost'
    """
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) if isinstance(part, ast.Constant) else "..." for part in node.values)
    if isinstance(node, ast.BinOp):
        return text_of(node.left) + text_of(node.right)
    return ""


def _name(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def page(found: Collection[Message], classes: Sequence[str]) -> str:
    """Return the text of the page.

    Args:
        found: the messages.
        classes: the errors on the page of errors, with their causes and remedies, in its order.
    """
    parts = [
        "# Messages",
        "The texts of errors, as they stand in the sources, by the part of farandole that raises them; `...` stands "
        "for what is filled in. A message says what is wrong and what to do.",
    ]
    for name in classes:
        own = sorted({f"{message.room}: {message.text}" for message in found if message.error == name})
        if own:
            text = "\n".join(own)
            parts += [f"## `{name}`", f"[Cause and remedy](../errors.md#{name.lower()})", f"~~~text\n{text}\n~~~"]
    return "\n\n".join(parts) + "\n"

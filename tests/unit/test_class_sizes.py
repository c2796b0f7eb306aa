"""Large classes say why they are large: those of more than 25 methods, or of more than 15 fields."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "farandole"
MOST_METHODS, MOST_FIELDS = 25, 15
# A docstring that says so has one of these words.
REASON = re.compile(r"\b(methods|fields)\b")


def methods_of(cls: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in cls.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def fields_of(cls: ast.ClassDef) -> set[str]:
    """Return the attributes that its methods assign to `self`."""
    nodes = [node for method in methods_of(cls) for node in ast.walk(method) if isinstance(node, ast.Attribute)]
    return {
        node.attr
        for node in nodes
        if isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name) and node.value.id == "self"
    }


def is_large(cls: ast.ClassDef) -> bool:
    """Say whether a class has too much; a record, which is declared as data, may have many fields."""
    return len(methods_of(cls)) > MOST_METHODS or len(fields_of(cls)) > MOST_FIELDS


def large_classes(text: str) -> list[ast.ClassDef]:
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef) and is_large(node)]


@pytest.mark.parametrize(
    ("body", "large"),
    [
        ("".join(f"    def m{i}(self): pass\n" for i in range(25)), False),
        ("".join(f"    def m{i}(self): pass\n" for i in range(26)), True),
        ("    def m(self):\n" + "".join(f"        self.f{i} = 1\n" for i in range(15)), False),
        (
            "    def m(self):\n        self.a, self.b = 1, 2\n"
            + "".join(f"        self.f{i} = 1\n" for i in range(14)),
            True,
        ),
        ("".join(f"    f{i}: int\n" for i in range(30)), False),
    ],
    ids=["25 methods", "26 methods", "15 fields", "16 fields", "a record"],
)
def test_large_classes_are_found(body: str, large: bool) -> None:
    assert bool(large_classes("class C:\n" + body)) == large


def test_large_classes_say_why() -> None:
    silent = [
        f"{file.relative_to(PACKAGE)}: {cls.name}"
        for file in sorted(PACKAGE.rglob("*.py"))
        for cls in large_classes(file.read_text())
        if not REASON.search(ast.get_docstring(cls) or "")
    ]
    assert not silent

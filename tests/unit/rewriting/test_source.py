"""Edits of a script's text."""

from __future__ import annotations

import ast

import pytest

from farandole.control.rewriting.refusal import NotUnderstood
from farandole.control.rewriting.source import ScriptSource


def test_unedited_text_keeps_every_byte() -> None:
    text = "x = 1   # é\n\ty = 2\n".replace("\t", "") + "if x:\n\tpass"
    assert ScriptSource(text).result() == text


def test_positions_are_those_of_characters() -> None:
    source = ScriptSource("é = 'ü'; f('ß', x)\n")
    call = next(node for node in ast.walk(source.tree) if isinstance(node, ast.Call))
    assert source.of(call) == "f('ß', x)"
    source.replace(call.args[1], "yy")
    assert source.result() == "é = 'ü'; f('ß', yy)\n"


@pytest.mark.parametrize(
    ("call", "result"),
    [
        ("f()", "f(c=1)"),
        ("f(a)", "f(a, c=1)"),
        ("f(a,)", "f(a, c=1)"),
        ("f(\n    a,\n    b,\n)", "f(\n    a,\n    b, c=1\n)"),
    ],
)
def test_an_argument_more(call: str, result: str) -> None:
    source = ScriptSource(f"{call}\n")
    node = source.tree.body[0].value  # type: ignore[attr-defined]
    source.append_argument(node, "c=1")
    assert source.result() == f"{result}\n"


def test_lines_more_have_the_indentation_of_the_statement() -> None:
    source = ScriptSource("def f():\n    x = 1\n    return x")
    function = source.tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    source.insert_before(function.body[0], "a()", "", "b()")
    source.insert_after(function.body[1], "c()")
    assert source.result() == "def f():\n    a()\n\n    b()\n    x = 1\n    return x\n    c()"


def test_statements_below_a_head() -> None:
    source = ScriptSource("for x in y:\n    print(\n        x,\n    )\n    print(2)\n")
    loop = source.tree.body[0]
    assert isinstance(loop, ast.For)
    source.put_below(loop.body, "if z:")
    assert source.result() == ("for x in y:\n    if z:\n        print(\n            x,\n        )\n        print(2)\n")


def test_invalid_python_is_refused() -> None:
    with pytest.raises(NotUnderstood, match="line 2: invalid Python"):
        ScriptSource("x = 1\nprint 3\n")

"""The text of a script with its syntax tree, and edits of the text that leave everything else unchanged."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from farandole.control.rewriting.refusal import NotUnderstood, Refusal


class _Edit(NamedTuple):
    start: int
    end: int
    text: str


class ScriptSource:
    """A script: its text, its syntax tree, and pending edits.

    Attributes:
        text: the original text.
        tree: the syntax tree.

    Raises:
        NotUnderstood: it is not valid Python of this version.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            self.tree = ast.parse(text)
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None) or 1
            reason = getattr(error, "msg", None) or str(error)
            raise NotUnderstood([Refusal(line, f"invalid Python: {reason}", "correct it first")]) from None
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))
        self._parents = {child: parent for parent in ast.walk(self.tree) for child in ast.iter_child_nodes(parent)}
        self._edits: list[_Edit] = []

    @property
    def is_edited(self) -> bool:
        """Whether there are pending edits."""
        return bool(self._edits)

    # --- positions ---------------------------------------------------------------------------------------------------

    def of(self, node: ast.AST) -> str:
        """Return the text of a node."""
        start, end = self._span(node)
        return self.text[start:end]

    def _span(self, node: ast.AST) -> tuple[int, int]:
        lineno, end_lineno = node.lineno, node.end_lineno  # type: ignore[attr-defined]
        column, end_column = node.col_offset, node.end_col_offset  # type: ignore[attr-defined]
        return self._offset(lineno, column), self._offset(end_lineno, end_column)

    def _offset(self, lineno: int, column: int) -> int:
        # The parser counts bytes of UTF-8.
        line = self._lines[lineno - 1].encode()
        return self._starts[lineno - 1] + len(line[:column].decode())

    def indent_of(self, statement: ast.stmt) -> str:
        """Return the white space before a statement that begins its line."""
        line = self._lines[statement.lineno - 1]
        return line[: len(line) - len(line.lstrip())]

    def begins_its_line(self, statement: ast.stmt) -> bool:
        """Return whether a statement shares its lines with nothing but the white space before it."""
        start, end = self._span(statement)
        line_end = self._starts[statement.end_lineno or statement.lineno]
        before = self.text[self._starts[statement.lineno - 1] : start]
        after = self.text[end:line_end].strip()
        return not before.strip() and (not after or after.startswith("#"))

    def is_followed_by_blank(self, statement: ast.stmt) -> bool:
        """Return whether a statement is followed by an empty line or the end of the text."""
        following = self._lines[statement.end_lineno or statement.lineno :]
        return not following or not following[0].strip()

    # --- the tree ----------------------------------------------------------------------------------------------------

    def parent(self, node: ast.AST) -> ast.AST | None:
        """Return the node that a node belongs to."""
        return self._parents.get(node)

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes around a node, the nearest first."""
        while (parent := self._parents.get(node)) is not None:
            yield parent
            node = parent

    def statement(self, node: ast.AST) -> ast.stmt:
        """Return the statement that a node belongs to."""
        for each in (node, *self.above(node)):
            if isinstance(each, ast.stmt):
                return each
        raise AssertionError("a node outside of all statements")

    def function(self, node: ast.AST) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """Return the function that a node is in; None: the module."""
        for each in self.above(node):
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                return each
        return None

    def block(self, statement: ast.stmt) -> Sequence[ast.stmt]:
        """Return the block of statements that contains a statement."""
        parent = self._parents[statement]
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(parent, field, [])
            if isinstance(statements, list) and statement in statements:
                return statements
        return [statement]

    # --- edits -------------------------------------------------------------------------------------------------------

    def replace(self, node: ast.AST, text: str) -> None:
        """Replace a node by a text."""
        self._edits.append(_Edit(*self._span(node), text))

    def around(self, node: ast.AST, before: str, after: str) -> None:
        """Insert texts before and after a node."""
        start, end = self._span(node)
        self._edits += [_Edit(start, start, before), _Edit(end, end, after)]

    def append_argument(self, call: ast.Call, text: str) -> None:
        """Add an argument at the end of a call."""
        end = self._span(call)[1] - 1
        inside = self.text[self._span(call.func)[1] : end].rstrip()
        empty = not (call.args or call.keywords)
        # In a call over several lines, a comma may stand after the last argument.
        place = self._span(call.func)[1] + len(inside)
        self._edits.append(_Edit(place, place, text if empty else f" {text}" if inside.endswith(",") else f", {text}"))

    def insert_before(self, statement: ast.stmt, *lines: str) -> None:
        """Insert lines before a statement, with its indentation."""
        indent = self.indent_of(statement)
        first = min([statement.lineno, *(each.lineno for each in getattr(statement, "decorator_list", []))])
        place = self._starts[first - 1]
        self._edits.append(_Edit(place, place, "".join(_indented(indent, line) for line in lines)))

    def insert_after(self, statement: ast.stmt, *lines: str) -> None:
        """Insert lines after a statement, with its indentation."""
        indent = self.indent_of(statement)
        place = self._starts[statement.end_lineno or statement.lineno]
        text = "".join(_indented(indent, line) for line in lines)
        if place and not self.text[:place].endswith("\n"):
            text = "\n" + text.removesuffix("\n")
        self._edits.append(_Edit(place, place, text))

    def put_below(self, statements: Sequence[ast.stmt], head: str) -> None:
        """Make statements that follow each other the body of a compound statement with this head."""
        self.insert_before(statements[0], head)
        for number in range(statements[0].lineno, (statements[-1].end_lineno or statements[-1].lineno) + 1):
            if self._lines[number - 1].strip():
                place = self._starts[number - 1]
                self._edits.append(_Edit(place, place, "    "))

    def result(self) -> str:
        """Return the text with all edits."""
        pieces, at = [], 0
        # Edits at one place are applied in the order in which they were requested.
        for edit in sorted(self._edits, key=lambda edit: (edit.start, edit.end)):
            assert edit.start >= at, "two edits of one place"
            pieces += [self.text[at : edit.start], edit.text]
            at = edit.end
        return "".join([*pieces, self.text[at:]])


def _indented(indent: str, line: str) -> str:
    return f"{indent}{line}\n" if line else "\n"

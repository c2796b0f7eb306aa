"""A fake terminal that records the visible text, with the features that the launcher's output uses."""

from __future__ import annotations

import re

_SEQUENCE = re.compile(r"\x1b\[([0-9;]*)([A-Za-z])|(.)", re.DOTALL)
_UNFINISHED = re.compile(r"\x1b(?:\[[0-9;]*)?$")


class FakeTerminal:
    """Receives the output for a terminal; `rows` is the visible text, from the first line that was written.

    It supports colours (which it ignores), carriage return, newline, cursor up, and erasing to the end of the line or
    of the screen. Any other control sequence is an error.
    """

    def __init__(self, columns: int = 80) -> None:
        self.columns = columns
        self._rows: list[list[str]] = [[]]
        self._row = 0
        self._column = 0
        self._unfinished = ""

    @property
    def rows(self) -> list[str]:
        """The visible text, without the empty line in which the cursor may be."""
        rows = ["".join(row).rstrip() for row in self._rows]
        return rows[:-1] if rows[-1] == "" else rows

    def feed(self, text: str) -> None:
        """Receive output, in any pieces."""
        text = self._unfinished + text
        begun = _UNFINISHED.search(text)
        self._unfinished = begun[0] if begun else ""
        text = text.removesuffix(self._unfinished)
        for found in _SEQUENCE.finditer(text):
            parameter, command, character = found.groups()
            if command is not None:
                self._obey(command, int(parameter or 1) if command == "A" else 0)
            else:
                self._write(character)

    def _obey(self, command: str, count: int) -> None:
        if command == "A":
            self._row = max(0, self._row - count)
        elif command in "JK":
            del self._rows[self._row][self._column :]
            if command == "J":
                del self._rows[self._row + 1 :]
        else:
            assert command == "m", f"ESC [ {command} has reached the terminal"

    def _write(self, character: str) -> None:
        if character == "\r":
            self._column = 0
        elif character == "\n":
            self._row, self._column = self._row + 1, 0
            if self._row == len(self._rows):
                self._rows.append([])
        else:
            assert character.isprintable() or character == "\t", f"{character!r} has reached the terminal"
            if self._column == self.columns:
                self._write("\n")
            row = self._rows[self._row]
            row += [" "] * (self._column - len(row))
            row[self._column : self._column + 1] = [character]
            self._column += 1

"""Splits a stream of bytes, which arrives in arbitrary pieces, into lines with a prefix."""

from __future__ import annotations

import re
from collections.abc import Callable

LONGEST_LINE = 64 * 1024
"""Longer lines are split, so that a line without an end does not fill the memory."""

_LINE_END = re.compile(rb"\r\n|\n|\r")


class LineSplitter:
    """Puts a prefix before every line of a stream of bytes that arrives in arbitrary pieces.

    Bytes that are not UTF-8 are shown as �. The result of `stamp`, if given, precedes the prefix.

    Example:
        >>> splitter = LineSplitter("[0]<stdout>:")
        >>> splitter.feed(b"one\\ntw")
        ['[0]<stdout>:one\\n']
        >>> splitter.feed(b"o")
        []
        >>> splitter.flush()
        ['[0]<stdout>:two\\n']
    """

    def __init__(self, prefix: str, stamp: Callable[[], str] | None = None) -> None:
        self._prefix = prefix
        self._stamp = stamp
        self._rest = b""
        self._after_return = False
        """Whether the last line ended with a carriage return, so that a newline that follows belongs to it."""

    def feed(self, data: bytes) -> list[str]:
        """Add bytes; return the lines that are now complete, and a newline that belongs to the line before."""
        out = []
        if self._after_return and data:
            self._after_return = False
            if data.startswith(b"\n"):
                out.append("\n")
                data = data[1:]
        data = self._rest + data
        start = 0
        for match in _LINE_END.finditer(data):
            line = data[start : match.end()]
            if line == b"\r" and match.end() == len(data):
                break  # The next bytes show whether this is an empty line or the start of a progress bar.
            start = match.end()
            # "\r 10%\r 20%": the empty line before the first \r is meaningless.
            if line != b"\r":
                out.append(self._line(line))
            self._after_return = start == len(data) and line.endswith(b"\r")
        self._rest = data[start:]
        while len(self._rest) > LONGEST_LINE:
            cut = _character_start(self._rest, LONGEST_LINE)
            out.append(self._line(self._rest[:cut] + b"\n"))
            self._rest = self._rest[cut:]
        return out

    def flush(self) -> list[str]:
        """Return the rest as a line of its own."""
        rest, self._rest = self._rest, b""
        return [self._line(rest + b"\n")] if rest.strip(b"\r") else []

    def _line(self, line: bytes) -> str:
        stamp = self._stamp() if self._stamp is not None else ""
        return stamp + self._prefix + line.decode("utf-8", "replace")


def _character_start(data: bytes, position: int) -> int:
    """Return the last position up to `position` that does not cut a UTF-8 character."""
    for back in range(4):
        if data[position - back] & 0xC0 != 0x80:
            return position - back
    return position

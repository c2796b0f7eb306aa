"""A JSON array on disk that is complete after every write, and never larger than it may be."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import accumulate, takewhile
from os import PathLike

_BEGIN = b"[\n"
_END = b"\n]\n"
_BETWEEN = b",\n"


class ArrayFile:
    """A JSON array that grows.

    Each write replaces the closing bracket by a comma, the new elements and another bracket, in one call to the
    system: whoever reads the file meanwhile finds valid JSON. So does a reader after its writer was killed, unless
    that was in this very call: the kernel cuts it short at the end of a page. What was written before is there then,
    but the closing bracket is not, without which viewers do.
    """

    def __init__(self, path: str | PathLike[str], limit: int) -> None:
        """Create the file, or empty it.

        Args:
            path: where.
            limit: most bytes that it may hold.

        Raises:
            OSError: it cannot be written there.
        """
        self._limit = limit
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        self._next = 0
        """Where the closing bracket is, and so where the next elements begin."""
        try:
            self._put(_BEGIN, b"")
        except BaseException:
            os.close(self._fd)
            raise

    def append(self, elements: Sequence[str], *, reserve: int = 0) -> int:
        """Add elements to the array, as many as there is room for.

        Args:
            elements: each one valid JSON.
            reserve: bytes below the limit that must stay free.

        Returns:
            How many were added, from the first on.

        Raises:
            OSError: they could not be written, as on a full disk. The file is as it was before.
        """
        encoded = [element.encode() for element in elements]
        room = self._limit - reserve - self._next - len(_END)
        if sum(map(len, encoded)) + len(encoded) * len(_BETWEEN) > room:
            sizes = accumulate(len(element) + len(_BETWEEN) for element in encoded)
            encoded = encoded[: sum(1 for _ in takewhile(lambda size: size <= room, sizes))]
        if encoded:
            self._put(_BETWEEN.join(encoded), _BETWEEN if self._next > len(_BEGIN) else b"")
        return len(encoded)

    def close(self) -> None:
        """Close the file; nothing can be added any more."""
        os.close(self._fd)

    def _put(self, body: bytes, between: bytes) -> None:
        data = between + body + _END
        written = 0
        try:
            while written < len(data):
                written += os.pwrite(self._fd, data[written:], self._next + written)
        except OSError:
            # These blocks of the file exist already, so that this can be written even if the disk is full.
            os.pwrite(self._fd, _END, self._next)
            os.ftruncate(self._fd, self._next + len(_END))
            raise
        self._next += len(between) + len(body)

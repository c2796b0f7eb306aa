"""Files on disk that grow, are complete after every write, and are never larger than they may be."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import accumulate, takewhile
from os import PathLike

_BEGIN = b"[\n"
_END = b"\n]\n"
_BETWEEN = b",\n"


class LimitedFile:
    """A file that grows at its end and is never larger than it may be.

    Args:
        path: where. The file is created, or emptied.
        limit: most bytes that it may hold.
        end: what stands behind everything after every write, and is replaced by the next one.

    Raises:
        OSError: it cannot be written there.
    """

    def __init__(self, path: str | PathLike[str], limit: int, end: bytes = b"") -> None:
        self._limit = limit
        self._end = end
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        self.size = 0
        """Bytes before the end, and so where the next ones begin."""

    def fitting(self, pieces: Sequence[bytes], reserve: int, between: bytes = b"") -> Sequence[bytes]:
        """Return the first of some pieces, as many as there is room for.

        Args:
            pieces: the bytes to write.
            reserve: bytes below the limit that must stay free.
            between: the separator of two pieces.
        """
        room = self._limit - reserve - self.size - len(self._end)
        sizes = accumulate(len(piece) + len(between) for piece in pieces)
        return pieces[: sum(1 for _ in takewhile(lambda size: size <= room, sizes))]

    def put(self, body: bytes) -> None:
        """Write something, and the end behind it.

        Raises:
            OSError: it could not be written, as on a full disk. The file is as it was before.
        """
        data, written = body + self._end, 0
        try:
            while written < len(data):
                written += os.pwrite(self._fd, data[written:], self.size + written)
        except OSError:
            # These blocks of the file exist already, so that this can be written even if the disk is full.
            os.pwrite(self._fd, self._end, self.size)
            os.ftruncate(self._fd, self.size + len(self._end))
            raise
        self.size += len(body)

    def close(self) -> None:
        """Close the file; nothing can be added any more."""
        os.close(self._fd)


class ArrayFile:
    """A JSON array that grows.

    Each write replaces the closing bracket by a comma, the new elements and another bracket, in one call to the
    system: a reader of the file meanwhile finds valid JSON. So does a reader after its writer was killed, unless
    that was in this very call: the kernel cuts it short at the end of a page. What was written before is there then,
    but the closing bracket is not, without which viewers do.
    """

    def __init__(self, path: str | PathLike[str], limit: int) -> None:
        """Create the file, or empty it.

        Args:
            path: the file to write.
            limit: most bytes that it may hold.

        Raises:
            OSError: it cannot be written there.
        """
        self._file = LimitedFile(path, limit, _END)
        try:
            self._file.put(_BEGIN)
        except BaseException:
            self._file.close()
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
        fitting = self._file.fitting([element.encode() for element in elements], reserve, _BETWEEN)
        if fitting:
            self._file.put((_BETWEEN if self._file.size > len(_BEGIN) else b"") + _BETWEEN.join(fitting))
        return len(fitting)

    def close(self) -> None:
        """Close the file; nothing can be added any more."""
        self._file.close()

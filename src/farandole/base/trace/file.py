"""Growing files of limited size that are complete after every write."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import accumulate, takewhile
from os import PathLike

_BEGIN = b"[\n"
_END = b"\n]\n"
_BETWEEN = b",\n"


class LimitedFile:
    """A file that grows at its end, up to a limit.

    Args:
        path: path of the file, which is created or emptied.
        limit: largest size of the file in bytes.
        end: bytes that follow the content after every write, and are overwritten by the next one.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, path: str | PathLike[str], limit: int, end: bytes = b"") -> None:
        self._limit = limit
        self._end = end
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        self.size = 0
        """Size of the content without the end, in bytes: the offset of the next write."""

    def fitting(self, pieces: Sequence[bytes], reserve: int, between: bytes = b"") -> Sequence[bytes]:
        """Return as many of the first pieces as fit into the file.

        Args:
            pieces: the bytes to write.
            reserve: number of bytes below the limit that must stay free.
            between: separator of two pieces.
        """
        room = self._limit - reserve - self.size - len(self._end)
        sizes = accumulate(len(piece) + len(between) for piece in pieces)
        return pieces[: sum(1 for _ in takewhile(lambda size: size <= room, sizes))]

    def put(self, body: bytes) -> None:
        """Append bytes, followed by the end.

        Raises:
            OSError: the bytes could not be written, as on a full disk. The file is unchanged.
        """
        data, written = body + self._end, 0
        try:
            while written < len(data):
                written += os.pwrite(self._fd, data[written:], self.size + written)
        except OSError:
            # These blocks of the file exist already, so this write succeeds even if the disk is full.
            os.pwrite(self._fd, self._end, self.size)
            os.ftruncate(self._fd, self.size + len(self._end))
            raise
        self.size += len(body)

    def close(self) -> None:
        """Close the file; nothing can be added any more."""
        os.close(self._fd)


class ArrayFile:
    """A growing JSON array.

    Each write replaces the closing bracket by a comma, the new elements and another bracket, in one system call:
    concurrent readers find valid JSON. So do readers after the writer was killed, unless it was killed in this call,
    which the kernel may cut short at the end of a page. Then the earlier elements are there, and only the closing
    bracket is missing, which viewers accept.
    """

    def __init__(self, path: str | PathLike[str], limit: int) -> None:
        """Create the file, or empty it.

        Args:
            path: the file to write.
            limit: largest size of the file in bytes.

        Raises:
            OSError: the file cannot be written.
        """
        self._file = LimitedFile(path, limit, _END)
        try:
            self._file.put(_BEGIN)
        except BaseException:
            self._file.close()
            raise

    def append(self, elements: Sequence[str], *, reserve: int = 0) -> int:
        """Add as many of the first elements to the array as fit.

        Args:
            elements: elements, each in valid JSON.
            reserve: number of bytes below the limit that must stay free.

        Returns:
            Number of elements that were added.

        Raises:
            OSError: the elements could not be written, as on a full disk. The file is unchanged.
        """
        fitting = self._file.fitting([element.encode() for element in elements], reserve, _BETWEEN)
        if fitting:
            self._file.put((_BETWEEN if self._file.size > len(_BEGIN) else b"") + _BETWEEN.join(fitting))
        return len(fitting)

    def close(self) -> None:
        """Close the file; nothing can be added any more."""
        self._file.close()

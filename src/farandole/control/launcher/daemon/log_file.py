"""The log file of output while no client shows it."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

LOG_BYTES = 64 * 1024 * 1024


class LogFile:
    """A file that is rotated at a size limit, with one previous file. Writing never raises and never blocks for long.

    Args:
        path: path of the file; the previous content is in the file with `.1` appended to its name.
        limit: size limit in bytes.
    """

    def __init__(self, path: Path, limit: int = LOG_BYTES) -> None:
        self._path = path
        self._limit = limit
        self._lock = threading.Lock()
        self._written = 0
        self._descriptor = self._open()

    def __call__(self, data: bytes) -> None:
        """Write the data if possible: a full disk must not end a running training."""
        with self._lock, contextlib.suppress(OSError):
            if self._written and self._written + len(data) > self._limit:
                self._begin_anew()
            self._written += os.write(self._descriptor, data)

    def fileno(self) -> int:
        """Return the descriptor, which stays the same."""
        return self._descriptor

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _begin_anew(self) -> None:
        os.replace(self._path, self._path.with_name(f"{self._path.name}.1"))
        fresh = self._open()
        os.dup2(fresh, self._descriptor, inheritable=False)
        os.close(fresh)
        self._written = 0

"""Where workers may write why they fail, as PyTorch's `@record` does: a private file for each, named in a variable."""

from __future__ import annotations

import os

VARIABLE = "TORCHELASTIC_ERROR_FILE"
LARGEST = 256 * 1024
"""Bytes of an error file that are read; a traceback is far shorter."""


class ErrorFiles:
    """A folder that only this user can enter, with room for a file of each worker of this host."""

    def __init__(self) -> None:
        """Make the folder.

        Raises:
            OSError: it cannot be made; then workers do without.
        """
        # Not `tempfile`: an agent loads as little as it can, and this is all that it needs of it.
        parent = os.environ.get("TMPDIR") or "/tmp"
        self._folder = os.path.join(parent, f"farandole-{os.urandom(8).hex()}")
        os.mkdir(self._folder, 0o700)

    def path(self, rank: int) -> str:
        """Return where this worker's file is to be. It does not exist yet."""
        return os.path.join(self._folder, f"{rank}.json")

    def take(self, rank: int) -> bytes:
        """Return what the worker wrote, at most `LARGEST` bytes, and remove it; b"" if it wrote nothing."""
        path = self.path(rank)
        try:
            # Whatever the worker has put there, reading it may not block.
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            return _read(fd)
        except OSError:
            return b""
        finally:
            os.close(fd)
            _remove(path)

    def close(self) -> None:
        """Remove the folder and what is in it."""
        try:
            for name in os.listdir(self._folder):
                _remove(os.path.join(self._folder, name))
            os.rmdir(self._folder)
        except OSError:
            pass  # A worker put a folder of its own there, or somebody has tidied up.


def _read(fd: int) -> bytes:
    content = b""
    while len(content) < LARGEST and (data := os.read(fd, LARGEST - len(content))):
        content += data
    return content


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass

"""Private files to which workers may write why they fail, as PyTorch's `@record` does; a variable names each file.

The files are in a folder that the agent removes at its end. The folder of a killed agent is removed by the next one on
the host: if a folder's lock is free, its agent has ended.
"""

from __future__ import annotations

import fcntl
import os

VARIABLE = "TORCHELASTIC_ERROR_FILE"
_FOLDER = "farandole-errors-"
LARGEST = 256 * 1024
"""Maximum number of bytes of an error file that are read; a traceback is far shorter."""


class ErrorFiles:
    """A folder that only this user can enter, with a file for each worker of this host."""

    def __init__(self) -> None:
        """Create the folder.

        Raises:
            OSError: it cannot be created; then workers run without error files.
        """
        # Not `tempfile`: an agent loads as little as possible, and this is all that it needs.
        parent = os.environ.get("TMPDIR") or "/tmp"
        _tidy(parent)
        name = f"{os.getuid()}-{os.urandom(8).hex()}"
        self._folder = os.path.join(parent, _FOLDER + name)
        unlocked = os.path.join(parent, f".{_FOLDER}{name}")
        os.mkdir(unlocked, 0o700)
        self._lock = os.open(unlocked, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        # Renamed only when locked: other agents would take an unlocked folder for abandoned.
        os.rename(unlocked, self._folder)

    def path(self, rank: int) -> str:
        """Return the path of this worker's file, which does not exist yet."""
        return os.path.join(self._folder, f"{rank}.json")

    def read_and_remove(self, rank: int) -> bytes:
        """Return the content of the worker's file, at most `LARGEST` bytes, and remove it; b"" if there is none."""
        path = self.path(rank)
        try:
            # Whatever the worker has put there, reading it must not block.
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
        """Remove the folder with its content. Further calls have no effect."""
        if self._lock >= 0:
            _remove_folder(self._folder)
            os.close(self._lock)
        self._lock = -1


def _tidy(parent: str) -> None:
    """Remove folders that killed agents of this user have left behind."""
    for name in os.listdir(parent):
        if not name.startswith(f"{_FOLDER}{os.getuid()}-"):
            continue
        folder = os.path.join(parent, name)
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # Just removed by its agent, or owned by another user.
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_folder(folder)
        except OSError:
            pass  # Its agent is alive.
        finally:
            os.close(lock)


def _remove_folder(folder: str) -> None:
    try:
        for name in os.listdir(folder):
            _remove(os.path.join(folder, name))
        os.rmdir(folder)
    except OSError:
        pass  # A worker created a folder in it, or another process has removed it.


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

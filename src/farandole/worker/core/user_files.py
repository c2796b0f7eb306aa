"""Files in a user's home by which that user's processes find each other, on all hosts that share the home.

The *key* is 32 random bytes that no other user can read, made when first needed. The job's secret is derived from it
and the name of the job, if no launcher has set one. The *meeting file* of a job contains the address of its roster. It
is not trusted: a worker that connects there requires the roster to prove that it holds the secret.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
from pathlib import Path

from farandole.base.wire.os_text import as_bytes
from farandole.errors import StartError

KEY_BYTES = 32

_WITHOUT_HOME = "Or do without it: export the same FARANDOLE_SECRET (64 hexadecimal digits) to all workers"


def job_secret(job_key: str) -> bytes:
    """Return the secret of a job: the same in all processes of this user that share a home, unknown to others.

    Args:
        job_key: a text that all workers of the job, and no other job, have in common.

    Raises:
        StartError: the user's key cannot be read or created.
    """
    return hmac.digest(
        _key(_home("XDG_CONFIG_HOME", ".config") / "key"), b"farandole job\n" + as_bytes(job_key), "sha256"
    )


def _home(variable: str, usual: str) -> Path:
    given = os.environ.get(variable, "")
    # By the specification, a path that is not absolute does not count.
    return Path(given if os.path.isabs(given) else os.path.join(os.path.expanduser("~"), usual)) / "farandole"


def _key(path: Path) -> bytes:
    try:
        if not path.exists():
            _make_key(path)
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            key = file.read()
    except OSError as error:
        raise StartError(
            f"the key of this user's jobs, {path}, cannot be read or made: {error.strerror or error}. {_WITHOUT_HOME}."
        ) from error
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise StartError(
            f"{path} belongs to another user or can be read by others, so it is not a secret. If nobody has changed "
            f"it: chmod 600 {path}. If in doubt, remove it, and a new one will be made. {_WITHOUT_HOME}."
        )
    if len(key) != KEY_BYTES:
        raise StartError(f"{path} does not hold a key. Remove it, and a new one will be made. {_WITHOUT_HOME}.")
    return key


def _make_key(path: Path) -> None:
    """Create a key, unless another process is faster: then all use its key."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = _write_beside(path, os.urandom(KEY_BYTES))
    try:
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)  # Unlike a renamed file, a link never replaces another file.
    finally:
        draft.unlink()


def _write_beside(path: Path, content: bytes) -> Path:
    """Write a file that only this user can read, under a name that no other process on any host uses, and return it."""
    draft = path.with_name(f"{path.name}.{os.urandom(8).hex()}")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return draft


class MeetingFile:
    """The file from which the workers of a job read the address of the roster that rank 0 serves.

    Attributes:
        path: its present or future path.
    """

    def __init__(self, job_key: str) -> None:
        """Determine the path; nothing is read or written yet."""
        name = hashlib.sha256(as_bytes(job_key)).hexdigest()[:32]
        self.path = _home("XDG_CACHE_HOME", ".cache") / "meet" / name

    def write(self, addresses: str) -> None:
        """Write the addresses for the others, atomically. The file of an earlier job is replaced.

        Raises:
            StartError: it cannot be written.
        """
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _write_beside(self.path, addresses.encode()).replace(self.path)
        except OSError as error:
            raise StartError(
                f"the meeting file {self.path} cannot be written: {error.strerror or error}. {_WITHOUT_HOME}, and "
                "FARANDOLE_ROSTER=<host of rank 0>:<port>."
            ) from error

    def read(self) -> str:
        """Return the present content; "" if there is none."""
        try:
            # Listing the folder refreshes a network file system, which may remember a missing name for a minute.
            os.close(os.open(self.path.parent, os.O_RDONLY))
            return self.path.read_text()
        except (OSError, UnicodeDecodeError):
            return ""

    def remove(self) -> None:
        """Remove the file, if it exists."""
        with contextlib.suppress(OSError):
            self.path.unlink()

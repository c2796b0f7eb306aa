"""The secret of a job in a file that may be replaced while the job runs, as a mounted Secret is."""

from __future__ import annotations

from pathlib import Path

from farandole.base.wire.errors import AuthenticationFailed

LEAST_BYTES = 16


class SecretFile:
    """A file with a job's secret, whose latest valid content is used while it is missing or invalid.

    Args:
        path: path of the file, which may end with a line end.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last = b""

    def read(self) -> bytes:
        """Return the secret.

        Raises:
            OSError: the file cannot be read, and could not be read before.
            AuthenticationFailed: the secret is too short, and there was no valid one before.
        """
        try:
            secret = self._path.read_bytes().strip()
        except OSError:
            if not self._last:
                raise
            return self._last
        if len(secret) >= LEAST_BYTES:
            self._last = secret
        elif not self._last:
            raise AuthenticationFailed(f"the secret in {self._path} is too short")
        return self._last

"""The secret of a job in a file that may be replaced while the job runs, as a mounted Secret is."""

from __future__ import annotations

from pathlib import Path

from farandole.base.wire.errors import AuthenticationFailed

LEAST_BYTES = 16


class SecretFile:
    """Returns the secret that is in a file now; the last good one, while the file is missing or has none.

    Args:
        path: of the file, which may end with an end of line.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last = b""

    def read(self) -> bytes:
        """Return the secret.

        Raises:
            OSError: the file cannot be read, and never could.
            AuthenticationFailed: what is in it is too short, and always was.
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

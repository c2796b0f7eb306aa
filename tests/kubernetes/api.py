"""A small client of the API server, for tests: it waits for answers, and knows no types."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

_SECONDS = 15.0
MERGE = "application/merge-patch+json"


class Unanswered(Exception):
    """The API server cannot be reached, or cannot do yet what it is asked for."""


class Refused(Exception):
    """The API server has said no.

    Attributes:
        code: the status of HTTP, such as 403.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class Api:
    """Speaks to one API server as one user.

    Args:
        url: of the server.
        token: of the user.
        authority: the file with the certificate that the server's is signed with.
    """

    def __init__(self, url: str, token: str, authority: Path) -> None:
        self._url = url
        self._token = token
        tls = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=str(authority)))
        # No proxy of the environment: the server is on this machine.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), tls)

    def get_text(self, path: str) -> str:
        """Return what is at a path, as it is."""
        return self._ask("GET", path).decode()

    def get(self, path: str) -> Any:
        """Return the object, or list, at a path.

        Raises:
            Refused: there is none, or this user may not.
            Unanswered: no API server.
        """
        return json.loads(self._ask("GET", path))

    def find(self, path: str) -> Any:
        """Return the object at a path, or None."""
        try:
            return self.get(path)
        except Refused as error:
            if error.code != 404:
                raise
            return None

    def items(self, path: str) -> list[Any]:
        """Return the objects of a list."""
        return list(self.get(path)["items"])

    def create(self, path: str, body: object) -> Any:
        """Make an object in the list at a path."""
        return json.loads(self._ask("POST", path, body))

    def patch(self, path: str, body: object) -> Any:
        """Change an object."""
        return json.loads(self._ask("PATCH", path, body, MERGE))

    def delete(self, path: str, **options: object) -> None:
        """Delete an object, or all of a list; no-op where there is none. Options are those of DeleteOptions."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background", **options}
        try:
            self._ask("DELETE", path, body)
        except Refused as error:
            if error.code != 404:
                raise

    def _ask(self, method: str, path: str, body: object = None, kind: str = "application/json") -> bytes:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind}
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        try:
            with self._opener.open(request, timeout=_SECONDS) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode(errors="replace")[:500]
            if error.code >= 500 or error.code == 429:
                raise Unanswered(f"{error.code}: {text}") from None
            raise Refused(error.code, text) from None
        except OSError as error:
            raise Unanswered(str(error)) from None

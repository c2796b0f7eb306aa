"""The HTTP server of metrics: `/metrics` for Prometheus; for a job also `/targets`, which lists its workers, and
`/view`, for dashboards.

It serves only GET, with one thread for each request, and ends with the process. With a token, a request must have it
(`Authorization: Bearer TOKEN`); without one, it listens on loopback only.
"""

from __future__ import annotations

import errno
import hmac
import http.server
import socket
import threading
import traceback
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any

from farandole.base.metrics.address import MetricsAddress
from farandole.base.metrics.readings import Reading
from farandole.errors import Picklable

REQUEST_SECONDS = 10.0
"""Seconds of silence after which a client is disconnected."""

Expose = Callable[[str], tuple[bytes, str]]
More = Mapping[str, Callable[[Mapping[str, str]], bytes]]
"""Functions from the query to JSON, by path."""


class MetricsUnavailable(Picklable, Exception):
    """Metrics cannot be served.

    Attributes:
        hint: the next step for the user.
    """

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.hint = hint


class MetricsEndpoint:
    """An HTTP server of metrics, which runs from its creation until it is closed.

    Attributes:
        address: the address that it listens on, with the actual port.

    Args:
        address: the address to listen on.
        read: returns the present reading; called in a thread of this endpoint, once for each request.
        token: the token that requests must have; "": none.
        more: further pages in JSON.

    Raises:
        MetricsUnavailable: the port is in use, prometheus-client is missing, or other machines could read without a
            token.
    """

    def __init__(
        self, address: MetricsAddress, read: Callable[[], Reading], token: str = "", more: More | None = None
    ) -> None:
        if not address.is_loopback and not token:
            raise MetricsUnavailable(
                f"metrics on {address} could be read by others without a token",
                "set FARANDOLE_METRICS_TOKEN to a secret, or omit the host to use loopback",
            )
        self._server = _Server(address, _load_exposition()(read), token, more or {})
        self.address = address.with_port(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="farandole-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the server. Returns when the port is free."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _load_exposition() -> Callable[[Callable[[], Reading]], Expose]:
    try:
        from farandole.base.metrics.exposition import make_exposition
    except ModuleNotFoundError as error:
        raise MetricsUnavailable(
            f"metrics need {error.name}, which is not installed", "pip install 'farandole[metrics]'"
        ) from None
    return make_exposition


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, address: MetricsAddress, expose: Expose, token: str, more: More) -> None:
        self.expose, self.token, self.more = expose, token, more
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        try:
            super().__init__((address.host, address.port), _Handler)
        except (OSError, OverflowError) as error:  # There is no port above 65535.
            is_about_port = not isinstance(error, OSError) or error.errno in (errno.EADDRINUSE, errno.EACCES)
            raise MetricsUnavailable(
                f"metrics cannot be served on {address}: {getattr(error, 'strerror', None) or error}",
                "choose another port: --metrics=PORT; 0: any free port"
                if is_about_port
                else "choose an address of this machine: --metrics=HOST:PORT, or only a port",
            ) from None

    def server_bind(self) -> None:
        # The base class asks the name service for this machine's name, which may take seconds.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = REQUEST_SECONDS
    server_version = "farandole"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer one request."""
        if not self._is_allowed():
            self._answer(401, b"a token is needed: Authorization: Bearer TOKEN\n", "text/plain", challenge=True)
            return
        try:
            answer = self._found()
        except Exception as error:
            # The training continues; the client and the log get the error.
            traceback.print_exc()
            wrong = f"this is an error of farandole's: {type(error).__name__}: {error}\n"
            answer = 500, wrong.encode(), "text/plain; charset=utf-8"
        self._answer(*answer)

    def _found(self) -> tuple[int, bytes, str]:
        """Return the status code, body and content type of the answer to an authorized request."""
        path, _, query = self.path.partition("?")
        if path == "/metrics":
            return 200, *self.server.expose(self.headers.get("Accept", ""))
        if path in self.server.more:
            return 200, self.server.more[path](dict(urllib.parse.parse_qsl(query))), "application/json"
        there = ", ".join(("/metrics", *self.server.more))
        return 404, f"there is {there}\n".encode(), "text/plain"

    def _is_allowed(self) -> bool:
        wanted = f"Bearer {self.server.token}"
        given = self.headers.get("Authorization", "")
        # The base class decodes headers as Latin-1; tokens are sent as UTF-8.
        return not self.server.token or hmac.compare_digest(given.encode("latin-1"), wanted.encode())

    def _answer(self, code: int, body: bytes, content_type: str, challenge: bool = False) -> None:
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        if challenge:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log requests: scrapes come every few seconds."""

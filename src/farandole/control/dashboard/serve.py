"""Runs the dashboard's server until it is interrupted."""

from __future__ import annotations

import contextlib
import errno
import secrets
import socket
import sys
import urllib.parse
from collections.abc import Callable, Iterator

from farandole.base.metrics.address import MetricsAddress
from farandole.control.dashboard.app import make_server
from farandole.control.dashboard.sources import JobSource
from farandole.control.jobs.errors import Refused

DEFAULT_PORT = 8478


def serve(
    source: JobSource,
    job: str,
    address: MetricsAddress,
    token: str = "",
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
) -> None:
    """Serve the dashboard, and return when the process is interrupted.

    Args:
        source: the source of the data.
        job: the job that is shown first; "": the list of jobs.
        address: the address to listen on; port 0 means any free port.
        token: the token that a browser needs; "": a new one is generated.
        say: called with the page's address, as a message.

    Raises:
        Refused: the address cannot be used.
    """
    token = token or secrets.token_urlsafe(24)
    with _listening(address) as sock:
        port = sock.getsockname()[1]
        hosts = frozenset({"localhost", "127.0.0.1", "::1", address.host}) if address.is_loopback else None
        server = make_server(source, job, token, port, hosts)
        here = socket.gethostname() if address.host in ("0.0.0.0", "::") else address.host
        say(f"farandole: dashboard: {address_with(MetricsAddress(here, port), token)}")
        if not address.is_loopback:
            say("note: others can read the token in transit; ssh -L 8478:localhost:8478 to this machine is safer")
        with contextlib.suppress(KeyboardInterrupt):
            server.run([sock])


def address_with(address: MetricsAddress, token: str) -> str:
    """Return the address to open in a browser, which contains the token."""
    return f"http://{address}/?token={urllib.parse.quote(token, safe='')}"


@contextlib.contextmanager
def _listening(address: MetricsAddress) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((address.host, address.port))
            sock.listen(64)
        except OSError as error:
            raise Refused(
                f"the dashboard cannot be served on {address}: {error.strerror or error}",
                "use another --port; 0 means any free port"
                if error.errno == errno.EADDRINUSE
                else "use an address of this machine as --host, and a --port that you may use",
            ) from None
        yield sock

"""Access control of the dashboard: a token, passed in the address once and then in a cookie, allows reading.

Every answer has headers that let a browser do nothing with the page but show it.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs, quote, unquote

from starlette.requests import cookie_parser

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

SECURITY_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
_REFUSED = """\
<!doctype html><html lang="en"><meta charset="utf-8"><title>farandole</title>
<h1>A token is needed</h1>
<p>Open the address that <code>farandole dashboard</code> has printed: it contains the token.</p>
<form action="/" method="get"><label>Token <input name="token" type="password" autocomplete="off" required></label>
<button>Open</button></form></html>
"""


class Gate:
    """Passes permitted requests on to an app.

    Args:
        app: the app that answers them.
        token: the token that they must carry.
        port: the port of the server, which is part of the cookie's name because cookies apply to all ports of a host.
        hosts: names under which a browser may address this server; None: any. On loopback, other names are rejected to
            prevent DNS rebinding, with which a web page could read data that only this machine may read.
    """

    def __init__(self, app: App, token: str, port: int, hosts: frozenset[str] | None) -> None:
        self._app = app
        self._token = token
        self._cookie = f"farandole-dashboard-{port}"
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if scope["method"] not in ("GET", "HEAD"):
            return await _answer(send, 405, "text/plain", "the dashboard is read-only\n", {"allow": "GET, HEAD"})
        if self._hosts is not None and _host_of(headers.get("host", "")) not in self._hosts:
            return await _answer(send, 400, "text/plain", "this server cannot be addressed by this name\n")
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if given and scope["path"] == "/" and self._is_right(given):
            cookie = f"{self._cookie}={quote(given, safe='')}; Path=/; HttpOnly; SameSite=Strict"
            return await _answer(send, 303, "text/plain", "", {"location": "/", "set-cookie": cookie})
        if not self._is_right(unquote(cookie_parser(headers.get("cookie", "")).get(self._cookie, ""))):
            return await _answer(send, 401, "text/html; charset=utf-8", _REFUSED)

        async def send_guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *_pairs(SECURITY_HEADERS)]}
            await send(message)

        await self._app(scope, receive, send_guarded)

    def _is_right(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self._token.encode())


def _host_of(header: str) -> str:
    host, colon, port = header.rpartition(":")
    return (host if colon and port.isdecimal() else header).strip("[]").lower()


def _pairs(headers: MutableMapping[str, str] | dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


async def _answer(send: Send, code: int, kind: str, text: str, more: dict[str, str] | None = None) -> None:
    body = text.encode()
    headers = {"content-type": kind, "content-length": str(len(body)), **SECURITY_HEADERS, **(more or {})}
    await send({"type": "http.response.start", "status": code, "headers": _pairs(headers)})
    await send({"type": "http.response.body", "body": body})

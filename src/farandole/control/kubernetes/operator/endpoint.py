"""The operator's HTTP server: a few pages by GET, in the operator's event loop.

So the liveness probe fails if the loop hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from http import HTTPStatus

# Timeout of a whole request with its answer, in seconds.
REQUEST_SECONDS = 10.0
PLAIN = "text/plain; charset=utf-8"

Page = Callable[[], tuple[HTTPStatus, str, str]]
"""Returns the status, the content type and the text of a page."""


async def serve(host: str, port: int, pages: Mapping[str, Page]) -> asyncio.Server:
    """Serve pages by path until the returned server is closed."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A client that sends an invalid request, is too slow, or closes the connection, gets no answer.
        with contextlib.suppress(
            asyncio.TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, ValueError
        ):
            await asyncio.wait_for(_answer(pages, reader, writer), REQUEST_SECONDS)
        writer.close()

    return await asyncio.start_server(answer, host, port)


async def _answer(pages: Mapping[str, Page], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    method, target, _ = head.decode("latin-1").split(" ", 2)
    page = pages.get(target.partition("?")[0])
    if page is None:
        status, kind, text = HTTPStatus.NOT_FOUND, PLAIN, f"the pages are {', '.join(pages)}\n"
    elif method != "GET":
        status, kind, text = HTTPStatus.METHOD_NOT_ALLOWED, PLAIN, "only GET is served\n"
    else:
        status, kind, text = page()
    body = text.encode()
    lines = [f"HTTP/1.1 {status.value} {status.phrase}", f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
    writer.write("\r\n".join([*lines, "Connection: close", "", ""]).encode() + body)
    await writer.drain()

"""The dashboard's server: one page, its script and style, and a stream of events for each browser."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from farandole.control.dashboard.access import Gate
from farandole.control.dashboard.feed import Overview
from farandole.control.dashboard.sources import JobSource

STATIC = Path(__file__).resolve().parent / "static"
FILES = {"page.js": "text/javascript", "style.css": "text/css", "icon.svg": "image/svg+xml"}
EVENT_SECONDS = 1.0
END_SECONDS = 5
"""Seconds in which pending answers have to be complete when the server ends."""
MOST_STREAMS = 64
"""Maximum number of browsers at a time."""
_MOST_DIGITS = 15
_SLICES = 5
"""Number of times between two events that a stream checks whether the server is about to end."""


class Dashboard:
    """Answers the requests of a page.

    Args:
        source: the source of all data.
        job: the job that is shown first; "": the list of jobs.
        ends: returns whether the server is about to end; streams end then.
        seconds: seconds between two events.
    """

    def __init__(
        self,
        source: JobSource,
        job: str = "",
        ends: Callable[[], bool] = lambda: False,
        seconds: float = EVENT_SECONDS,
    ) -> None:
        self._overview = Overview(source)
        self._job = job
        self._ends = ends
        self._seconds = seconds
        self._streams = 0

    def app(self) -> Starlette:
        """Return the server without access control."""
        return Starlette(
            routes=[
                Route("/", self._page),
                Route("/static/{name}", self._file),
                Route("/api/overview", self._jobs),
                Route("/api/job/{name}", self._one),
                Route("/events", self._events),
            ]
        )

    async def _page(self, request: Request) -> Response:
        return FileResponse(STATIC / "page.html", media_type="text/html")

    async def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in FILES:
            return PlainTextResponse("file not found\n", 404)
        return FileResponse(STATIC / name, media_type=FILES[name])

    async def _jobs(self, request: Request) -> Response:
        return JSONResponse(await self._model("", 0))

    async def _one(self, request: Request) -> Response:
        model = await self._model(request.path_params["name"], 0)
        return JSONResponse(model, 404 if model["job"] is None else 200)

    async def _events(self, request: Request) -> Response:
        if self._streams >= MOST_STREAMS:
            return PlainTextResponse("too many browsers are connected\n", 503)
        lines_from = _line_number(request.headers.get("last-event-id", ""))
        stream = self._stream(request.query_params.get("job", ""), lines_from)
        return StreamingResponse(stream, media_type="text/event-stream")

    async def _stream(self, job: str, lines_from: int) -> AsyncIterator[str]:
        """Yield events repeatedly; the id of each is the number of the next line that the browser needs."""
        self._streams += 1
        try:
            while True:
                model = await self._model(job, lines_from)
                if model["job"] is not None:
                    lines_from = model["job"]["lines_next"]
                yield f"id: {lines_from}\ndata: {json.dumps(model)}\n\n"
                for _ in range(_SLICES):
                    await asyncio.sleep(self._seconds / _SLICES)
                    if self._ends():
                        return
        finally:
            self._streams -= 1

    async def _model(self, job: str, lines_from: int) -> dict[str, Any]:
        return await run_in_threadpool(self._model_now, job, lines_from)

    def _model_now(self, job: str, lines_from: int) -> dict[str, Any]:
        overview = self._overview.model()
        feed = self._overview.feed(job) if job else None
        return {**overview, "first": self._job, "job": None if feed is None else feed.model(lines_from)}


def _line_number(text: str) -> int:
    """Return the number of a line that a browser sends; 0 if it is not one that it can have received."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else 0


def make_server(source: JobSource, job: str, token: str, port: int, hosts: frozenset[str] | None) -> uvicorn.Server:
    """Return the whole server, a `Dashboard` behind a `Gate`, which does not listen yet."""
    dashboard = Dashboard(source, job, ends=lambda: server.should_exit)
    config = uvicorn.Config(
        Gate(dashboard.app(), token, port, hosts),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=END_SECONDS,
    )
    server = uvicorn.Server(config)
    return server

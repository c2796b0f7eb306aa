"""Requests and timelines that were changed by chance get an answer of the dashboard, never an error of its program.

The chance is the same in each run. FARANDOLE_FUZZ_FRAMES: how many of each; `make fuzz` takes more.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import MutableMapping
from typing import Any
from urllib.parse import unquote

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from mutations import change_bytes, mutated
from played_dashboard import TOKEN, PlayedSource

from farandole.control.dashboard.access import Gate
from farandole.control.dashboard.app import Dashboard
from farandole.control.dashboard.timeline_window import spans_of, window_model

REQUESTS = int(os.environ.get("FARANDOLE_FUZZ_FRAMES", "400"))
PORT = 4000
COOKIE = f"farandole-dashboard-{PORT}={TOKEN}".encode()
PATHS = (b"/", b"/static/page.js", b"/api/overview", b"/api/job/otter", b"/api/job/nobody", b"/events")
QUERIES = (b"", b"job=otter", b"job=nobody", b"token=" + TOKEN.encode())
HEADERS = {
    b"host": b"localhost:4000",
    b"cookie": COOKIE,
    b"last-event-id": b"3",
    b"if-range": b"x",
    b"range": b"bytes=0-1",
}
CODES = {200, 206, 303, 304, 307, 400, 401, 404, 405, 416, 503}


def maybe_changed(value: bytes, rng: random.Random) -> bytes:
    return change_bytes(value, rng) if rng.random() < 0.3 else value


def in_a_target(value: bytes) -> bytes:
    """Return what a server for HTTP lets pass in the target of a request: visible letters of ASCII."""
    return bytes(each for each in value if 0x21 <= each <= 0x7E)


def request(rng: random.Random) -> dict[str, Any]:
    """Return a request as uvicorn hands it on: the path is text already, all else is bytes."""
    path = in_a_target(maybe_changed(rng.choice(PATHS), rng))
    headers = {name: maybe_changed(value, rng) for name, value in HEADERS.items() if rng.random() < 0.7}
    headers[b"cookie"] = headers.get(b"cookie", COOKIE)
    if rng.random() < 0.3:
        headers[b"last-event-id"] = b"9" * rng.choice((20, 5000, 60_000))
    return {
        "type": "http",
        "method": rng.choice(("GET", "GET", "GET", "HEAD", "POST", "x")),
        "path": unquote(path.decode()),
        "raw_path": path,
        "query_string": in_a_target(maybe_changed(rng.choice(QUERIES), rng)),
        "headers": list(headers.items()),
        "scheme": "http",
        "server": ("127.0.0.1", PORT),
        "http_version": "1.1",
        "root_path": "",
    }


async def status_of(app: Gate, scope: dict[str, Any]) -> int:
    """Return the status of the answer to a request, whose browser goes away after the first piece."""
    answers: list[MutableMapping[str, Any]] = []
    answered = asyncio.Event()

    async def receive() -> MutableMapping[str, Any]:
        await answered.wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        answers.append(message)
        if message["type"] == "http.response.body":
            answered.set()

    await app(scope, receive, send)
    return int(answers[0]["status"])


@pytest.mark.parametrize("seed", range(2))
def test_changed_requests_are_answered(seed: int) -> None:
    rng = random.Random(seed)
    gate = Gate(Dashboard(PlayedSource(), seconds=0.0).app(), TOKEN, PORT, frozenset({"localhost"}))

    async def run() -> set[int]:
        return {await status_of(gate, request(rng)) for _ in range(REQUESTS)}

    codes = asyncio.run(run())
    assert codes <= CODES
    assert {200, 400, 401, 404} <= codes


@pytest.mark.parametrize("seed", range(2))
def test_changed_timelines_are_drawn(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(REQUESTS):
        lines = []
        for at in range(8):
            record = {"name": "ALLREDUCE", "ph": "BE"[at % 2], "pid": 1, "tid": 0, "ts": 10.0 * at}
            text = json.dumps(mutated(record, rng, keep=()) if rng.random() < 0.3 else record)
            lines.append(maybe_changed(text.encode(), rng).decode(errors="replace") + ",")
        window = window_model(spans_of(lines))
        # As the browser gets it, which reads no NaN.
        json.dumps(window, allow_nan=False)

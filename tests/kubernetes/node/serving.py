"""What the API server asks of a node: logs and exec; and what tests ask of it: to evict or kill a pod."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import aiohttp
from aiohttp import web
from tests.kubernetes.node.container import Container
from tests.kubernetes.node.pod import PodRun, stamp

_REST_SECONDS = 0.05
_STDIN, _STDOUT, _STDERR, _STATUS = range(4)
_CLOSE = 255
_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")


class Serving:
    """The node's HTTPS server.

    Args:
        find: returns the pod of a namespace and a name that runs here, or None.
    """

    def __init__(self, find: Callable[[str, str], PodRun | None]) -> None:
        self._find = find
        self._runner: web.AppRunner

    async def start(self, port: int, certificate: str, key: str) -> None:
        """Listen."""
        application = web.Application()
        application.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        for method in ("GET", "POST"):
            application.router.add_route(method, "/exec/{namespace}/{pod}/{container}", self._exec)
        application.router.add_post("/evict/{namespace}/{pod}", self._evict)
        application.router.add_post("/kill/{namespace}/{pod}", self._kill)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate, key)
        await web.TCPSite(self._runner, "127.0.0.1", port, ssl_context=tls).start()

    async def close(self) -> None:
        """Serve no more."""
        await self._runner.cleanup()

    def _pod(self, request: web.Request) -> PodRun:
        found = self._find(request.match_info["namespace"], request.match_info["pod"])
        if found is None:
            raise web.HTTPNotFound(text="there is no such pod on this node")
        return found

    def _container(self, request: web.Request) -> Container:
        found = self._pod(request).containers.get(request.match_info["container"])
        if found is None:
            raise web.HTTPNotFound(text="there is no such container in the pod")
        return found

    async def _evict(self, request: web.Request) -> web.Response:
        await self._pod(request).evict("Evicted", "The node was low on resource: memory.")
        return web.Response(text="evicted")

    async def _kill(self, request: web.Request) -> web.Response:
        for container in self._pod(request).containers.values():
            container.kill(signal.SIGKILL)
        return web.Response(text="killed")

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        container = self._container(request)
        follow = request.query.get("follow") == "true"
        answer = web.StreamResponse()
        await answer.prepare(request)
        if not container.log.exists():
            return answer
        stamped = _Stamps(container.state.started, request.query.get("sinceTime", ""))
        show = stamped.lines if request.query.get("timestamps") == "true" else bytes
        with container.log.open("rb") as file:
            content = file.read()
            tail = request.query.get("tailLines")
            lines = content.splitlines(keepends=True)
            await answer.write(show(content if tail is None else b"".join(lines[-int(tail) or len(lines) :])))
            while follow:
                # The next start of the program has a log of its own.
                over = not container.state.running or not _is_at(container.log, file)
                if piece := file.read():
                    await answer.write(show(piece))
                elif over:
                    break
                await asyncio.sleep(_REST_SECONDS)
        return answer

    async def _exec(self, request: web.Request) -> web.WebSocketResponse:
        container = self._container(request)
        socket = web.WebSocketResponse(protocols=_PROTOCOLS)
        await socket.prepare(request)
        words = container.enter(request.query.getall("command"))
        if words is None:
            await socket.send_bytes(bytes([_STATUS]) + _result(126, "the container does not run"))
            await socket.close()
            return socket
        wants_input = any(request.query.get(name) in ("1", "true") for name in ("input", "stdin"))
        process = await asyncio.create_subprocess_exec(
            *words,
            env=container.environment,
            start_new_session=True,
            stdin=asyncio.subprocess.PIPE if wants_input else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        listening = asyncio.create_task(_pass_in(socket, process))
        try:
            assert process.stdout is not None and process.stderr is not None
            await asyncio.gather(_pass_out(process.stdout, socket, _STDOUT), _pass_out(process.stderr, socket, _STDERR))
            code = await process.wait()
            await socket.send_bytes(bytes([_STATUS]) + _result(code))
        except ConnectionError:
            pass  # The client is gone; so is the program, see `_pass_in`.
        await socket.close()
        listening.cancel()
        return socket


class _Stamps:
    """Puts a time before each line of a log. It is made up: the order is right, and no two lines have the same.

    Args:
        started: when the program started, in seconds since 1970.
        since: lines before that are left out.
    """

    def __init__(self, started: float, since: str) -> None:
        self._start, self._since = stamp(started).removesuffix("Z"), since
        self._count = 0
        self._rest = b""

    def lines(self, piece: bytes) -> bytes:
        """Return the next lines; what follows the last end of line is kept for the next time."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        found = []
        for line in lines:
            self._count += 1
            time = f"{self._start}.{self._count:09d}Z"
            if time >= self._since:
                found.append(time.encode() + b" " + line + b"\n")
        return b"".join(found)


def _is_at(path: Path, file: BinaryIO) -> bool:
    return path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno()))


async def _pass_out(stream: asyncio.StreamReader, socket: web.WebSocketResponse, channel: int) -> None:
    while piece := await stream.read(1 << 16):
        await socket.send_bytes(bytes([channel]) + piece)


async def _pass_in(socket: web.WebSocketResponse, process: asyncio.subprocess.Process) -> None:
    async for message in socket:
        if message.type != aiohttp.WSMsgType.BINARY or process.stdin is None:
            continue
        if message.data[:1] == bytes([_STDIN]):
            with contextlib.suppress(OSError):
                process.stdin.write(message.data[1:])
                await process.stdin.drain()
        elif message.data[:2] == bytes([_CLOSE, _STDIN]):
            process.stdin.close()
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _result(code: int, message: str = "") -> bytes:
    if code == 0:
        return json.dumps({"metadata": {}, "status": "Success"}).encode()
    told: dict[str, Any] = {
        "metadata": {},
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": message or f"command terminated with non-zero exit code: exit status {code}",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }
    return json.dumps(told).encode()

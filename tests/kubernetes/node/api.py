"""The node's client of the API server: asynchronous, and with watches that go on when they break."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
from typing import Any

import aiohttp
import yaml

OUTAGES = (aiohttp.ClientError, asyncio.TimeoutError, OSError)
"""What is raised where no server answers."""
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
_REST_SECONDS = 0.5
_WATCH_SECONDS = 300


class Rejected(Exception):
    """The API server refuses the request, and would refuse it again."""


class Unavailable(aiohttp.ClientError):
    """The API server answers, and cannot do yet what it is asked for."""


class NodeApi:
    """Speaks to the API server of a kubeconfig; enter it before use."""

    def __init__(self, kubeconfig: str) -> None:
        with open(kubeconfig, encoding="utf-8") as file:
            config = yaml.safe_load(file)
        cluster = config["clusters"][0]["cluster"]
        self.url: str = cluster["server"]
        self._tls = ssl.create_default_context(cafile=cluster.get("certificate-authority"))
        self._headers = {"Authorization": f"Bearer {config['users'][0]['user']['token']}"}
        self._http: aiohttp.ClientSession

    async def __aenter__(self) -> NodeApi:
        connector = aiohttp.TCPConnector(ssl=self._tls, limit=0)
        self._http = aiohttp.ClientSession(headers=self._headers, connector=connector)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def ask(self, method: str, path: str, body: object = None, kind: str = "application/json") -> Any:
        """Return the answer; None: there is no such object.

        Raises:
            Rejected: the server says no.
            aiohttp.ClientError: there is no server, or it is just starting; see `OUTAGES`.
        """
        data = None if body is None else json.dumps(body)
        async with self._http.request(method, self.url + path, data=data, headers={"Content-Type": kind}) as answer:
            text = await answer.text()
            if answer.status == 404:
                return None
            if answer.status >= 500 or answer.status == 429 or "not yet ready" in text:
                raise Unavailable(f"{method} {path}: {answer.status} {text[:200]}")
            if answer.status >= 300:
                raise Rejected(f"{method} {path}: {answer.status} {text[:200]}")
            return json.loads(text)

    async def insist(self, method: str, path: str, body: object = None, kind: str = "application/json") -> Any:
        """Do as `ask` does, and go on until there is an answer: what a node has to tell or to know cannot be left out.

        Raises:
            Rejected: the server says no.
        """
        while True:
            try:
                return await self.ask(method, path, body, kind)
            except OUTAGES:
                await asyncio.sleep(_REST_SECONDS)

    async def watch(self, path: str, changed: Callable[[dict[str, dict[str, Any]]], None]) -> None:
        """Call with all objects of a list, by uid, whenever one of them has changed, for as long as this is awaited."""
        while True:
            try:
                await self._watch_once(path, changed)
            except (*OUTAGES, Rejected, ValueError):
                pass  # The server is away, or has forgotten what the watch began with: begin anew.
            await asyncio.sleep(_REST_SECONDS)

    async def _watch_once(self, path: str, changed: Callable[[dict[str, dict[str, Any]]], None]) -> None:
        listed = await self.ask("GET", path)
        objects = {each["metadata"]["uid"]: each for each in listed["items"]}
        changed(objects)
        query = f"watch=1&timeoutSeconds={_WATCH_SECONDS}&resourceVersion={listed['metadata']['resourceVersion']}"
        url = f"{self.url}{path}{'&' if '?' in path else '?'}{query}"
        patience = aiohttp.ClientTimeout(total=None, sock_read=_WATCH_SECONDS + 30)
        async with self._http.get(url, timeout=patience) as answer:
            pending = b""
            async for piece in answer.content.iter_any():
                *lines, pending = (pending + piece).split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        return
                    uid = event["object"]["metadata"]["uid"]
                    if event["type"] == "DELETED":
                        objects.pop(uid, None)
                    else:
                        objects[uid] = event["object"]
                if lines:
                    changed(objects)

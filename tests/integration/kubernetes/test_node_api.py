"""The requests of the stand-in for the kubelet survive outages and starts of the API server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from fake_api_server import FakeApiServer
from tests.kubernetes.node.api import NodeApi, Rejected

SECRETS = "/api/v1/namespaces/default/secrets"
SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "one"}}


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


def kubeconfig(server: FakeApiServer, folder: Path) -> str:
    path = folder / "kubeconfig"
    clusters, users = [{"cluster": {"server": server.url}}], [{"user": {"token": "none"}}]
    path.write_text(json.dumps({"clusters": clusters, "users": users}))
    return str(path)


def test_request_is_repeated_until_it_is_answered(tmp_path: Path) -> None:
    async def test() -> None:
        server = FakeApiServer()
        await server.start()
        async with NodeApi(kubeconfig(server, tmp_path)) as api:
            server.down = True
            asking = asyncio.create_task(api.insist("GET", f"{SECRETS}/one"))
            await asyncio.sleep(0.7)
            assert not asking.done()
            server.down = False
            assert await asking is None

            server.refuse = lambda plural, obj: "not yet ready to handle request"
            making = asyncio.create_task(api.insist("POST", SECRETS, SECRET))
            await asyncio.sleep(0.7)
            assert not making.done()
            server.refuse = lambda plural, obj: ""
            assert (await making)["metadata"]["uid"]
        await server.close()

    run(test())


def test_refused_request_is_not_repeated(tmp_path: Path) -> None:
    async def test() -> None:
        server = FakeApiServer()
        await server.start()
        async with NodeApi(kubeconfig(server, tmp_path)) as api:
            await api.insist("POST", SECRETS, SECRET)
            with pytest.raises(Rejected, match="409"):
                await api.insist("POST", SECRETS, SECRET)
        await server.close()

    run(test())

"""The fake API server behaves like a real one, too (`tests/kubernetes/test_api_conformance.py`)."""

from __future__ import annotations

import asyncio

import api_conformance
import pytest
from fake_operators import config, fake_cluster

from farandole.control.kubernetes.api.client import Api


@pytest.mark.parametrize("check", api_conformance.CHECKS, ids=lambda check: check.__name__)
def test_fake_server_conforms(check: api_conformance.Check) -> None:
    async def test() -> None:
        async with fake_cluster() as (server, _):
            api = Api(config(server))
            try:
                await check(api, "default")
            finally:
                await api.close()

    asyncio.run(asyncio.wait_for(test(), 60))

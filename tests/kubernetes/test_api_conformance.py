"""A real API server behaves like the fake, too (`tests/integration/kubernetes/test_fake_api_server.py`)."""

from __future__ import annotations

import asyncio

import api_conformance
import pytest
from lightkube.config.kubeconfig import KubeConfig
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.operators import RunningOperator

from farandole.control.kubernetes.api.client import Api


@pytest.mark.parametrize("check", api_conformance.CHECKS, ids=lambda check: check.__name__)
def test_real_api_conforms(
    operator: RunningOperator, cluster: Cluster, namespace: str, check: api_conformance.Check
) -> None:
    async def test() -> None:
        api = Api(KubeConfig.from_file(cluster.control.kubeconfig).get())
        try:
            await check(api, namespace)
        finally:
            await api.close()

    asyncio.run(asyncio.wait_for(test(), 100))

"""The cluster in which the operator is installed, or from which it is removed."""

from __future__ import annotations

import asyncio
from typing import Any

from farandole.control.kubernetes import names
from farandole.control.kubernetes.api.client import Api, collection, default_config
from farandole.control.kubernetes.api.errors import ApiError, NotFound
from farandole.control.kubernetes.deploy.manifests import Manifest
from farandole.control.kubernetes.kinds import KINDS

_PLURALS = {
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "CustomResourceDefinition": "customresourcedefinitions",
    "Deployment": "deployments",
    "Namespace": "namespaces",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "ServiceAccount": "serviceaccounts",
}
_POLL = 0.5


class Cluster:
    """A connection for an installation or removal."""

    def __init__(self) -> None:
        self._api = Api(default_config())
        self._minor: int | None = None

    async def __aenter__(self) -> Cluster:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._api.close()

    async def apply(self, item: Manifest) -> None:
        """Apply a manifest by server-side apply."""
        parameters = {"fieldManager": f"{names.OPERATOR}-install", "force": "true"}
        await self._api.send("PATCH", _path(item), item, parameters, "application/apply-patch+yaml")

    async def delete(self, item: Manifest) -> bool:
        """Delete the object of a manifest; return whether it existed."""
        try:
            await self._api.send("DELETE", _path(item), {"propagationPolicy": "Background"})
        except NotFound:
            return False
        return True

    async def minor_version(self) -> int:
        """Return the minor version n of the server's version 1.n."""
        if self._minor is None:
            text = str((await self._api.send("GET", "/version")).get("minor", ""))
            digits = text.rstrip("+")
            self._minor = int(digits) if digits.isdecimal() else 99
        return self._minor

    async def served(self, kinds: list[Manifest]) -> None:
        """Wait until jobs of all kinds and versions can be created."""
        for item in kinds:
            for version in item["spec"]["versions"]:
                path = f"/apis/{item['spec']['group']}/{version['name']}"
                while not await self._there(path):
                    await asyncio.sleep(_POLL)

    async def gone(self, items: list[Manifest]) -> None:
        """Wait until all objects are deleted."""
        for item in items:
            while await self._there(_path(item)):
                await asyncio.sleep(_POLL)

    async def jobs(self) -> list[str]:
        """Return all jobs."""
        found: list[str] = []
        for kind in KINDS:
            try:
                items, _ = await self._api.list(kind.api_version, kind.plural)
            except NotFound:
                continue
            found += [f"{kind.kind} {_name(item)}" for item in items]
        return found

    async def _there(self, path: str) -> bool:
        try:
            await self._api.send("GET", path)
        except ApiError as error:
            # A kind that was deleted a moment ago is answered with an internal error of the server.
            return not isinstance(error, NotFound)
        return True


def _path(item: Manifest) -> str:
    metadata: dict[str, Any] = item["metadata"]
    path = collection(item["apiVersion"], _PLURALS[item["kind"]], metadata.get("namespace", ""))
    return f"{path}/{metadata['name']}"


def _name(item: Manifest) -> str:
    return f"{item['metadata']['namespace']}/{item['metadata']['name']}"

"""The volumes of a pod, as folders of this machine.

ConfigMaps, Secrets and the like are laid out as the kubelet does it: the files are behind a link `..data`, which is
replaced as a whole, so that readers see the old files or the new ones and no mixture.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
from typing import Any

from tests.kubernetes.node.api import NodeApi

Files = dict[str, tuple[bytes, int]]


class MissingSource(Exception):
    """What a volume or a variable is made of is not there; the pod waits for it, as with a kubelet."""


def field(pod: dict[str, Any], path: str, address: str, node: str) -> str:
    """Return what the downward API says of a pod."""
    metadata = pod["metadata"]
    if "[" in path:
        which, _, key = path.partition("[")
        return str((metadata.get(which.split(".")[1]) or {}).get(key.strip("']\""), ""))
    known = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": node,
        "spec.serviceAccountName": pod["spec"].get("serviceAccountName", ""),
        "status.podIP": address,
        "status.hostIP": "127.0.0.1",
    }
    return str(known.get(path, ""))


class Volumes:
    """The volumes of one pod.

    Args:
        api: where their contents are.
        pod: as the API server has it.
        folder: where those are kept that are made here.
        node: the node's name.
        group: `fsGroup` of the pod; None: none.
    """

    def __init__(self, api: NodeApi, pod: dict[str, Any], folder: str, node: str, group: int | None) -> None:
        self._api = api
        self._pod = pod
        self._folder = folder
        self._node = node
        self._group = group
        self.address = ""

    async def prepare(self, volume: dict[str, Any]) -> str:
        """Make a volume, or bring it up to date, and return the folder.

        Raises:
            MissingSource: what it is made of is not there.
        """
        if "hostPath" in volume:
            return self._host_path(volume["hostPath"])
        if "persistentVolumeClaim" in volume:
            return await self._claimed(volume["persistentVolumeClaim"]["claimName"])
        folder = os.path.join(self._folder, volume["name"])
        os.makedirs(folder, exist_ok=True)
        if "emptyDir" in volume:
            os.chmod(folder, 0o777)
            return folder
        self._lay_out(folder, await self._files(volume))
        return folder

    def uses(self, kind: str, name: str) -> bool:
        """Return whether a volume is made of a ConfigMap or Secret."""
        return any(
            source.get(kind, {}).get("name", source.get(kind, {}).get("secretName")) == name
            for volume in self._pod["spec"].get("volumes", [])
            for source in (volume, *volume.get("projected", {}).get("sources", []))
        )

    def _host_path(self, source: dict[str, Any]) -> str:
        path = str(source["path"])
        if source.get("type") == "DirectoryOrCreate":
            os.makedirs(path, exist_ok=True)
        if not os.path.exists(path):
            raise MissingSource(f"hostPath {path} does not exist")
        return path

    async def _claimed(self, claim: str) -> str:
        found = await self._get("persistentvolumeclaims", claim)
        name = found["spec"].get("volumeName")
        if not name or found.get("status", {}).get("phase") != "Bound":
            raise MissingSource(f"PersistentVolumeClaim {claim} is not bound")
        volume = await self._api.insist("GET", f"/api/v1/persistentvolumes/{name}")
        return self._host_path(volume["spec"]["hostPath"])

    async def _files(self, volume: dict[str, Any]) -> Files:
        projected = volume.get("projected")
        if projected is None:
            return await self._source(volume, 0o644)
        files: Files = {}
        for source in projected["sources"]:
            files.update(await self._source(source, projected.get("defaultMode", 0o644)))
        return files

    async def _source(self, source: dict[str, Any], mode: int) -> Files:
        if "serviceAccountToken" in source:
            token = await self._token(source["serviceAccountToken"].get("expirationSeconds", 3600))
            return {source["serviceAccountToken"]["path"]: (token, 0o600)}
        if "downwardAPI" in source:
            items = source["downwardAPI"]["items"]
            paths = {each["path"]: each["fieldRef"]["fieldPath"] for each in items if "fieldRef" in each}
            told = {name: field(self._pod, path, self.address, self._node) for name, path in paths.items()}
            return {name: (text.encode(), mode) for name, text in told.items()}
        if "secret" in source:
            given = source["secret"]
            name = given.get("secretName") or given["name"]
            data = await self._data("secrets", name, bool(given.get("optional")))
            return _chosen({key: base64.b64decode(value) for key, value in data.items()}, given, mode)
        given = source["configMap"]
        return _chosen(await self._config(given["name"], bool(given.get("optional"))), given, mode)

    async def _config(self, name: str, optional: bool) -> dict[str, bytes]:
        try:
            found = await self._get("configmaps", name)
        except MissingSource:
            if optional:
                return {}
            raise
        binary = {key: base64.b64decode(value) for key, value in (found.get("binaryData") or {}).items()}
        return {**{key: value.encode() for key, value in (found.get("data") or {}).items()}, **binary}

    async def _data(self, kind: str, name: str, optional: bool) -> dict[str, str]:
        try:
            found = await self._get(kind, name)
        except MissingSource:
            if optional:
                return {}
            raise
        return dict(found.get("data") or {})

    async def _get(self, kind: str, name: str) -> dict[str, Any]:
        found = await self._api.insist("GET", f"/api/v1/namespaces/{self._pod['metadata']['namespace']}/{kind}/{name}")
        if found is None:
            raise MissingSource(f"{kind[:-1]} {name!r} not found")
        return dict(found)

    async def _token(self, seconds: int) -> bytes:
        metadata, spec = self._pod["metadata"], self._pod["spec"]
        account = spec.get("serviceAccountName", "default")
        bound = {"kind": "Pod", "apiVersion": "v1", "name": metadata["name"], "uid": metadata["uid"]}
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds, "boundObjectRef": bound},
        }
        path = f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts/{account}/token"
        made = await self._api.insist("POST", path, request)
        return str(made["status"]["token"]).encode()

    def _lay_out(self, folder: str, files: Files) -> None:
        state = f"..{hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:12]}"
        data = os.path.join(folder, "..data")
        before = os.readlink(data) if os.path.islink(data) else None
        if before == state:
            return
        self._write(os.path.join(folder, state), files)
        draft = os.path.join(folder, "..draft")
        os.symlink(state, draft)
        os.rename(draft, data)
        tops = {name.split("/")[0] for name in files}
        for name in tops:
            link = os.path.join(folder, name)
            if not os.path.lexists(link):
                os.symlink(f"..data/{name}", link)
        for name in os.listdir(folder):
            if not name.startswith("..") and name not in tops:
                os.unlink(os.path.join(folder, name))
        if before is not None:
            shutil.rmtree(os.path.join(folder, before), ignore_errors=True)

    def _write(self, folder: str, files: Files) -> None:
        os.makedirs(folder)
        for name, (content, mode) in files.items():
            path = os.path.join(folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(content)
            os.chmod(path, mode)
            if self._group is not None:
                # The group may read what its owner may, as the kubelet has it.
                os.chown(path, -1, self._group)
                os.chmod(path, mode | 0o440)


def _chosen(data: dict[str, bytes], given: dict[str, Any], mode: int) -> Files:
    items = given.get("items") or [{"key": key, "path": key} for key in data]
    mode = given.get("defaultMode", mode)
    missing = [item["key"] for item in items if item["key"] not in data]
    if missing:
        raise MissingSource(f"references non-existent key {missing[0]!r}")
    return {item["path"]: (data[item["key"]], item.get("mode", mode)) for item in items}

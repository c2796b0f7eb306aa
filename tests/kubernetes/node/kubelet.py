"""The node itself: its object and lease, which pods it runs, and what it tells them of each other's names."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kubernetes.node.api import MERGE, OUTAGES, STRATEGIC, NodeApi, Rejected
from tests.kubernetes.node.network import PodNetwork
from tests.kubernetes.node.pod import PodRun, stamp
from tests.kubernetes.node.serving import Serving

_LEASE_SECONDS = 40
_RENEW_SECONDS = 2.0
_CHUNK = 1 << 16
API_PORT = 6443


@dataclass(frozen=True)
class NodeOptions:
    """What a node is like.

    Attributes:
        resources: quantities by name, more than processors, memory and pods.
        volume_delay: seconds after which a change of a ConfigMap or Secret reaches the files of a pod.
    """

    name: str
    number: int
    bridge: int
    port: int
    folder: Path
    kubeconfig: str
    certificate: str
    key: str
    resources: dict[str, str]
    volume_delay: float


class Kubelet:
    """Runs the pods that are bound to it, for as long as it is awaited."""

    def __init__(self, options: NodeOptions) -> None:
        self._options = options
        self._api = NodeApi(options.kubeconfig)
        self._network = PodNetwork(options.bridge, options.number)
        self._runs: dict[str, PodRun] = {}
        self._pods: dict[str, dict[str, Any]] = {}
        self._endpoints: dict[str, dict[str, Any]] = {}
        self._versions: dict[tuple[str, str, str], str] = {}
        self._done: set[tuple[str, str]] = set()
        """What was done with pods that ended with this node before it was started again, by uid."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._since = stamp(time.time())

    async def run(self, ready: Callable[[], None]) -> None:
        """Be a node, until this is cancelled.

        Args:
            ready: called when pods can be bound to it.
        """
        options = self._options
        for left in options.folder.glob("*"):
            if left.name != "logs":
                shutil.rmtree(left)  # Of pods that this node has run before it lost its power.
        serving = Serving(self._find)
        async with self._api:
            await serving.start(options.port, options.certificate, options.key)
            relay = await asyncio.start_server(self._relay, sock=self._network.listen(API_PORT))
            await self._register()
            ready()
            try:
                await asyncio.gather(
                    self._keep_lease(),
                    self._api.watch("/api/v1/pods", self._take_pods),
                    self._api.watch("/api/v1/endpoints", self._take_endpoints),
                    self._api.watch("/api/v1/configmaps", lambda found: self._take_data("configMap", found)),
                    self._api.watch("/api/v1/secrets", lambda found: self._take_data("secret", found)),
                )
            finally:
                relay.close()
                await serving.close()

    def _find(self, namespace: str, name: str) -> PodRun | None:
        for run in self._runs.values():
            if (run.pod["metadata"]["namespace"], run.name) == (namespace, name):
                return run
        return None

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- the node -----------------------------------------------------------------------------------------------

    async def _register(self) -> None:
        name = self._options.name
        labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
        if await self._api.ask("GET", f"/api/v1/nodes/{name}") is None:
            await self._api.ask("POST", "/api/v1/nodes", node)
        await self._tell_status()

    async def _tell_status(self) -> None:
        name, options = self._options.name, self._options
        capacity = {"cpu": "64", "memory": "64Gi", "pods": "200", "ephemeral-storage": "100Gi", **options.resources}
        now = stamp(time.time())
        ready = {"type": "Ready", "status": "True", "reason": "StandInReady", "message": "pods are processes"}
        status = {
            "capacity": capacity,
            "allocatable": capacity,
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": name}],
            # Newer servers pass WebSockets on as they are only to nodes that say so.
            "declaredFeatures": ["ExtendWebSocketsToKubelet"],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": options.port}},
            "conditions": [{**ready, "lastHeartbeatTime": now, "lastTransitionTime": self._since}],
        }
        await self._api.ask("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, STRATEGIC)

    async def _keep_lease(self) -> None:
        while True:
            with contextlib.suppress(Rejected, *OUTAGES):
                await self._renew()
                await self._tell_status()
            await asyncio.sleep(_RENEW_SECONDS)

    async def _renew(self) -> None:
        name = self._options.name
        renewed = stamp(time.time()).replace("Z", ".000000Z")
        spec = {"holderIdentity": name, "leaseDurationSeconds": _LEASE_SECONDS, "renewTime": renewed}
        leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        if await self._api.ask("PATCH", f"{leases}/{name}", {"spec": spec}, MERGE) is None:
            lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": spec}
            await self._api.ask("POST", leases, lease)

    # --- pods ---------------------------------------------------------------------------------------------------

    def _take_pods(self, pods: dict[str, dict[str, Any]]) -> None:
        self._pods = dict(pods)
        for uid, pod in pods.items():
            if pod["spec"].get("nodeName") != self._options.name:
                continue
            if uid in self._runs:
                self._runs[uid].changed(pod)
            elif pod["metadata"].get("deletionTimestamp"):
                self._once(uid, self._forget, pod)
            elif pod.get("status", {}).get("phase") == "Running" and pod["spec"].get("restartPolicy") == "Never":
                self._once(uid, self._tell_lost, pod)
            elif pod.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
                folder = self._options.folder
                self._runs[uid] = PodRun(pod, self._api, self._network, folder, self._options.name)
        for uid in [uid for uid in self._runs if uid not in pods]:
            self._runs.pop(uid).gone()
        self._write_names()

    def _once(self, uid: str, do: Callable[[dict[str, Any]], Coroutine[Any, Any, None]], pod: dict[str, Any]) -> None:
        if (uid, do.__name__) not in self._done:
            self._done.add((uid, do.__name__))
            self._spawn(do(pod))

    async def _forget(self, pod: dict[str, Any]) -> None:
        """Let a pod go that this node has run before it was started again, or never."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        with contextlib.suppress(Rejected):
            uid = pod["metadata"]["uid"]
            await self._api.insist("DELETE", _path(pod), {**options, "preconditions": {"uid": uid}})

    async def _tell_lost(self, pod: dict[str, Any]) -> None:
        """Tell that a pod has failed whose programs ended with the node, and which must not be started again."""
        now = stamp(time.time())
        ended = {"exitCode": 137, "reason": "ContainerStatusUnknown", "startedAt": now, "finishedAt": now}
        containers = [
            {**each, "ready": False, "started": False, "state": {"terminated": ended}}
            for each in pod["status"].get("containerStatuses", [])
        ]
        ready = [{"type": name, "status": "False", "lastTransitionTime": now} for name in ("Ready", "ContainersReady")]
        status = {"phase": "Failed", "conditions": ready, "containerStatuses": containers}
        with contextlib.suppress(Rejected):
            await self._api.insist("PATCH", f"{_path(pod)}/status", {"status": status}, STRATEGIC)

    def _take_endpoints(self, endpoints: dict[str, dict[str, Any]]) -> None:
        self._endpoints = dict(endpoints)
        self._write_names()

    def _write_names(self) -> None:
        """Tell the pods of this node all names. A file is written in its place: it is mounted."""
        texts: dict[str, str] = {}
        for run in self._runs.values():
            namespace = run.pod["metadata"]["namespace"]
            if namespace not in texts:
                texts[namespace] = "".join(f"{line}\n" for line in self._names(namespace))
            hostname = run.pod["spec"].get("hostname") or run.name
            text = f"127.0.0.1 localhost\n{run.address} {hostname}\n{texts[namespace]}"
            if run.address and run.hosts.exists() and run.hosts.read_text() != text:
                with run.hosts.open("r+") as file:
                    file.write(text)
                    file.truncate()

    def _names(self, namespace: str) -> list[str]:
        lines = []
        for pod in self._pods.values():
            address, metadata, spec = pod.get("status", {}).get("podIP"), pod["metadata"], pod["spec"]
            if address and spec.get("subdomain") and pod["status"].get("phase") == "Running":
                short = f"{spec.get('hostname') or metadata['name']}.{spec['subdomain']}"
                lines.append(f"{address} {_qualified(short, metadata['namespace'], namespace)}")
        for endpoint in self._endpoints.values():
            metadata = endpoint["metadata"]
            for subset in endpoint.get("subsets") or []:
                for each in subset.get("addresses") or []:
                    lines.append(f"{each['ip']} {_qualified(metadata['name'], metadata['namespace'], namespace)}")
        return lines

    def _take_data(self, kind: str, found: dict[str, dict[str, Any]]) -> None:
        for each in found.values():
            namespace, name = each["metadata"]["namespace"], each["metadata"]["name"]
            version = json.dumps([each.get("data"), each.get("binaryData")], sort_keys=True)
            # By name: one that was deleted and made again takes the place of the one before in the pods' files, too.
            if self._versions.setdefault((kind, namespace, name), version) != version:
                self._versions[kind, namespace, name] = version
                self._spawn(self._refresh(kind, namespace, name))

    async def _refresh(self, kind: str, namespace: str, name: str) -> None:
        await asyncio.sleep(self._options.volume_delay)
        for run in list(self._runs.values()):
            if run.pod["metadata"]["namespace"] == namespace:
                await run.refresh(kind, name)

    # --- the way to the API server ------------------------------------------------------------------------------

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a pod's connection to the API server, which listens on this machine's loopback only."""
        host, _, port = self._api.url.removeprefix("https://").partition(":")
        try:
            back_reader, back_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, back_writer), _copy(back_reader, writer))


def _path(pod: dict[str, Any]) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _qualified(short: str, of: str, reader: str) -> str:
    names = [f"{short}.{of}.svc.cluster.local", f"{short}.{of}.svc", f"{short}.{of}"]
    return " ".join([*names, short] if of == reader else names)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while piece := await reader.read(_CHUNK):
            writer.write(piece)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()

"""One pod on this node: its sandbox, volumes and containers, from the first start to the last status."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from tests.kubernetes.children import die_with_parent
from tests.kubernetes.node import probes
from tests.kubernetes.node.api import MERGE, OUTAGES, NodeApi, Rejected
from tests.kubernetes.node.container import Container, Security
from tests.kubernetes.node.network import PodNetwork
from tests.kubernetes.node.volumes import MissingSource, Volumes, field

_RETRY_SECONDS = 0.5
# How often the folder of a pod is removed, until nothing writes into it any more.
_REMOVALS = 20
# A kubelet waits 10 s to 5 minutes; tests have no minutes.
_FIRST_BACKOFF_SECONDS = 1.0
_LONGEST_BACKOFF_SECONDS = 10.0
# The most of a log that is in the status of a container that has failed.
_MESSAGE_BYTES, _MESSAGE_LINES = 2048, 80
# An image of that name is never there.
ABSENT_IMAGE = "absent"


def stamp(seconds: float) -> str:
    """Return a time as the API has it."""
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class PodRun:
    """Runs a pod. All is done in the loop's thread.

    It has many fields because it owns one object for each part of a pod.

    Attributes:
        pod: as the API server has it.
        containers: the ordinary ones, by name, as far as they are made.
        address: "" before there is one.
    """

    def __init__(self, pod: dict[str, Any], api: NodeApi, network: PodNetwork, folder: Path, node: str) -> None:
        self.pod = pod
        self.address = ""
        self.containers: dict[str, Container] = {}
        self._api = api
        self._network = network
        self._folder = folder / pod["metadata"]["uid"]
        self._node = node
        self._sandbox: subprocess.Popen[bytes] | None = None
        self._phase = "Pending"
        self._reason = self._message = ""
        self._initialized = False
        self._stopping = False
        self._reporting = asyncio.Lock()
        group = (pod["spec"].get("securityContext") or {}).get("fsGroup")
        self.volumes = Volumes(api, pod, str(self._folder / "volumes"), node, group)
        self.hosts = self._folder / "hosts"
        self._task = _spawn(self._run())
        self._stop_task: asyncio.Task[None] | None = None

    @property
    def uid(self) -> str:
        """Of the pod."""
        return str(self.pod["metadata"]["uid"])

    @property
    def name(self) -> str:
        """Of the pod."""
        return str(self.pod["metadata"]["name"])

    @property
    def is_over(self) -> bool:
        """Whether it has run to an end."""
        return self._phase in ("Succeeded", "Failed")

    # --- running ------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self.hosts.write_text("127.0.0.1 localhost\n")
        await self._make_sandbox()
        spec = self.pod["spec"]
        for each in spec.get("initContainers", []):
            if await self._run_init(each) != 0:
                await self._end("Failed")
                return
        self._initialized = True
        for each in spec["containers"]:
            container = self.containers[each["name"]] = self._container(each)
            container.state.restarts = self._starts_before(each["name"])
        codes = await asyncio.gather(*map(self._supervise, self.containers.values()))
        if not self._stopping:
            await self._end("Failed" if any(codes) else "Succeeded")

    async def _make_sandbox(self) -> None:
        # Its network, host name and IPC are those of all containers.
        self._sandbox = subprocess.Popen(
            ["unshare", "--net", "--uts", "--ipc", "sleep", "infinity"],
            stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=die_with_parent,
        )  # fmt: skip
        own = Path("/proc/self/ns/ipc").readlink()
        while Path(f"/proc/{self._sandbox.pid}/ns/ipc").readlink() == own:
            await asyncio.sleep(0.005)
        self.address = self.volumes.address = self._network.connect(self._sandbox.pid)

    def _container(self, spec: dict[str, Any]) -> Container:
        assert self._sandbox is not None
        return Container(spec, self._folder, self._sandbox.pid, Security())

    def _starts_before(self, name: str) -> int:
        """Return how often a container was started by this node before the node itself was started again."""
        told = self.pod.get("status", {}).get("containerStatuses", [])
        return sum(each["restartCount"] + bool(each.get("started")) for each in told if each["name"] == name)

    async def _run_init(self, spec: dict[str, Any]) -> int:
        container = self._container(spec)
        self.containers[spec["name"]] = container
        while True:
            code = await self._run_once(container)
            if code == 0 or self.pod["spec"].get("restartPolicy", "Always") == "Never":
                del self.containers[spec["name"]]
                return code
            await asyncio.sleep(_FIRST_BACKOFF_SECONDS)

    async def _supervise(self, container: Container) -> int:
        policy = self.pod["spec"].get("restartPolicy", "Always")
        rest = 0.0  # As a kubelet does, it starts a program again at once that has ended for the first time.
        while True:
            code = await self._run_once(container)
            if self._stopping or policy == "Never" or (policy == "OnFailure" and code == 0):
                return code
            state = container.state
            state.before = {"terminated": _ended(container)}
            if rest:
                state.waiting = "CrashLoopBackOff"
            await self.report()
            await asyncio.sleep(rest)
            state.restarts += 1
            rest = min(max(2 * rest, _FIRST_BACKOFF_SECONDS), _LONGEST_BACKOFF_SECONDS)

    async def _run_once(self, container: Container) -> int:
        binds = await self._prepared(container)
        spec = self.pod["spec"]
        hostname = spec.get("hostname") or self.name
        running = asyncio.create_task(container.run(binds, hostname))
        try:
            return await self._watched(container, running)
        finally:
            # A pod that is deleted while its program starts takes that along.
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def _watched(self, container: Container, running: asyncio.Task[int]) -> int:
        while not container.state.running and not running.done():
            await asyncio.sleep(0.005)
        if self._initialized:
            self._phase = "Running"
        watching = asyncio.create_task(probes.watch(container, self.address, self._network, self.report))
        try:
            await self.report()
            return await running
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _prepared(self, container: Container) -> list[tuple[str, str, bool]]:
        """Return what is mounted, when all that the container is made of is there."""
        while True:
            try:
                if container.spec.get("image", "").startswith(ABSENT_IMAGE):
                    reason, why = "ImagePullBackOff", f"Back-off pulling image {container.spec['image']!r}"
                else:
                    container.security = Security.of(self.pod["spec"], container.spec)
                    container.environment = await self._environment(container.spec)
                    return await self._binds(container.spec)
            except (MissingSource, ValueError, Rejected) as error:
                reason, why = "CreateContainerConfigError", str(error)
            if (container.state.waiting, container.state.message) != (reason, why):
                container.state.waiting, container.state.message = reason, why
                await self.report()
            await asyncio.sleep(_RETRY_SECONDS)

    async def _environment(self, spec: dict[str, Any]) -> dict[str, str]:
        hostname = self.pod["spec"].get("hostname") or self.name
        environment = {
            # As an image has it in which farandole is installed.
            "PATH": f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/root",
            "HOSTNAME": hostname,
            "KUBERNETES_SERVICE_HOST": self._network.address,
            "KUBERNETES_SERVICE_PORT": "6443",
        }
        for source in spec.get("envFrom", []):
            kind = "configMapRef" if "configMapRef" in source else "secretRef"
            environment.update(await self._data(kind, source[kind]))
        for each in spec.get("env", []):
            environment[each["name"]] = await self._value(each)
        return environment

    async def _value(self, variable: dict[str, Any]) -> str:
        source = variable.get("valueFrom")
        if source is None:
            return str(variable.get("value", ""))
        if "fieldRef" in source:
            return field(self.pod, source["fieldRef"]["fieldPath"], self.address, self._node)
        kind = "configMapKeyRef" if "configMapKeyRef" in source else "secretKeyRef"
        data = await self._data(kind, source[kind])
        if source[kind]["key"] not in data and not source[kind].get("optional"):
            raise MissingSource(f"couldn't find key {source[kind]['key']}")
        return data.get(source[kind]["key"], "")

    async def _data(self, kind: str, reference: dict[str, Any]) -> dict[str, str]:
        secret = kind.startswith("secret")
        where = "secrets" if secret else "configmaps"
        path = f"/api/v1/namespaces/{self.pod['metadata']['namespace']}/{where}/{reference['name']}"
        found = await self._api.insist("GET", path)
        if found is None:
            if reference.get("optional"):
                return {}
            raise MissingSource(f"{where[:-1]} {reference['name']!r} not found")
        data = found.get("data") or {}
        return {key: base64.b64decode(value).decode() for key, value in data.items()} if secret else dict(data)

    async def _binds(self, spec: dict[str, Any]) -> list[tuple[str, str, bool]]:
        volumes = {each["name"]: each for each in self.pod["spec"].get("volumes", [])}
        binds = [(str(self.hosts), "/etc/hosts", False)]
        for mount in spec.get("volumeMounts", []):
            folder = await self.volumes.prepare(volumes[mount["name"]])
            source = f"{folder}/{mount['subPath']}" if mount.get("subPath") else folder
            binds.append((source, mount["mountPath"], bool(mount.get("readOnly"))))
        return binds

    async def refresh(self, kind: str, name: str) -> None:
        """Bring the volumes up to date that are made of a ConfigMap or Secret which has changed."""
        for volume in self.pod["spec"].get("volumes", []):
            if self.volumes.uses(kind, name) and self._phase == "Running":
                with contextlib.suppress(MissingSource, Rejected):
                    await self.volumes.prepare(volume)

    # --- ending -------------------------------------------------------------------------------------------------

    def changed(self, pod: dict[str, Any]) -> None:
        """Record the pod's present state in the API server; stop the pod if it is to end."""
        self.pod = pod
        if pod["metadata"].get("deletionTimestamp") and self._stop_task is None:
            grace = pod["metadata"].get("deletionGracePeriodSeconds") or 0
            self._stop_task = _spawn(self._stop_and_delete(grace))
        elif self._phase == "Running" and _is_ready(pod.get("status", {})) != _is_ready(self._status()):
            # The control plane takes pods of a node that was silent for not ready, and waits for the node to say more.
            _spawn(self.report())

    def gone(self) -> None:
        """Record that the API server has it no more: end it at once."""
        if self._stop_task is not None and self.pod["metadata"].get("deletionGracePeriodSeconds"):
            return  # The object has gone because it ended here.
        self._stop_task = _spawn(self._stop(0))

    async def evict(self, reason: str, message: str) -> None:
        """End it for want of resources: it is Failed, and stays so."""
        self._reason, self._message = reason, message
        grace = min(self.pod["spec"].get("terminationGracePeriodSeconds", 30), 30)
        await self._stop(grace, remove=False)
        self._phase = "Failed"
        await self.report()

    async def _stop_and_delete(self, grace: float) -> None:
        await self._stop(grace)
        await self.report()
        metadata = self.pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        with contextlib.suppress(Rejected):
            await self._api.insist("DELETE", path, {**options, "preconditions": {"uid": self.uid}})

    async def _stop(self, grace: float, remove: bool = True) -> None:
        self._stopping = True
        living = [each for each in self.containers.values() if each.state.running]
        for each in living:
            each.state.ready = False
        deadline = time.monotonic() + grace
        if living and grace:
            await asyncio.gather(self.report(), *(self._say_goodbye(each, grace) for each in living))
        while time.monotonic() < deadline and any(each.state.running for each in living):
            await asyncio.sleep(0.02)
        while any(each.state.running for each in living):
            for each in living:
                each.kill(signal.SIGKILL)
            await asyncio.sleep(0.02)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._close_sandbox()
        if remove:
            self._keep_logs()
            await self._remove_folder()

    async def _remove_folder(self) -> None:
        # Killed processes may still be in the middle of making a file.
        for _ in range(_REMOVALS):
            shutil.rmtree(self._folder, ignore_errors=True)
            if not self._folder.exists():
                return
            await asyncio.sleep(_RETRY_SECONDS)

    def _keep_logs(self) -> None:
        """Keep what it has written for those who ask why a test failed: the API server knows it no more."""
        logs = self._folder.parent / "logs"
        logs.mkdir(exist_ok=True)
        for log in self._folder.glob("*.log*"):
            log.replace(logs / f"{self.pod['metadata']['namespace']}.{self.name}.{log.name}")

    async def _say_goodbye(self, container: Container, grace: float) -> None:
        command = ((container.spec.get("lifecycle") or {}).get("preStop") or {}).get("exec", {}).get("command")
        if command:
            await probes.run_inside(container, command, grace)
        container.kill(signal.SIGTERM)

    async def _end(self, phase: str) -> None:
        self._phase = phase
        self._close_sandbox()
        await self.report()

    def _close_sandbox(self) -> None:
        if self._sandbox is not None:
            self._sandbox.kill()
            self._sandbox.wait()
            self._sandbox = None
            if self.address:
                self._network.release(self.address)

    # --- telling ------------------------------------------------------------------------------------------------

    async def report(self) -> None:
        """Tell the API server how it is now."""
        metadata = self.pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
        while True:
            async with self._reporting:
                try:
                    await self._api.ask("PATCH", path, {"metadata": {"uid": self.uid}, "status": self._status()}, MERGE)
                    return
                except Rejected:
                    return  # It is another pod's name by now.
                except OUTAGES:
                    pass  # What is told when the server is back is how the pod is then.
            await asyncio.sleep(_RETRY_SECONDS)

    def _status(self) -> dict[str, Any]:
        specs = self.pod["spec"]["containers"]
        statuses = [_container_status(each, self.containers.get(each["name"])) for each in specs]
        ready = self._phase == "Running" and all(each["ready"] for each in statuses)
        now = stamp(time.time())
        conditions = [
            {"type": name, "status": str(bool(value)), "lastTransitionTime": now}
            for name, value in (
                ("Initialized", self._initialized),
                ("Ready", ready),
                ("ContainersReady", ready),
                ("PodScheduled", True),
            )
        ]
        status: dict[str, Any] = {"phase": self._phase, "hostIP": "127.0.0.1", "conditions": conditions}
        status |= {"startTime": self.pod.get("status", {}).get("startTime") or now, "containerStatuses": statuses}
        if self.address:
            status |= {"podIP": self.address, "podIPs": [{"ip": self.address}]}
        if self._reason:
            status |= {"reason": self._reason, "message": self._message}
        return status


def _is_ready(status: dict[str, Any]) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions") or [])


def _spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    task = asyncio.create_task(work)
    task.add_done_callback(_complain)
    return task


def _complain(task: asyncio.Task[None]) -> None:
    """Write a fault of this tool into the log of the node, where a reader who looks for a pod's problem finds it."""
    if not task.cancelled() and (error := task.exception()) is not None:
        traceback.print_exception(error)


def _ended(container: Container) -> dict[str, Any]:
    state = container.state
    ended: dict[str, Any] = {
        "exitCode": state.code,
        "reason": state.reason,
        "startedAt": stamp(state.started),
        "finishedAt": stamp(state.finished),
    }
    if state.code and container.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
        ended["message"] = _last_lines(container)
    return ended


def _last_lines(container: Container) -> str:
    text = container.log.read_bytes()[-_MESSAGE_BYTES:] if container.log.exists() else b""
    return "".join(text.decode(errors="replace").splitlines(keepends=True)[-_MESSAGE_LINES:])


def _container_status(spec: dict[str, Any], container: Container | None) -> dict[str, Any]:
    told: dict[str, Any] = {"name": spec["name"], "image": spec.get("image", ""), "imageID": "", "ready": False}
    if container is None:
        return {**told, "restartCount": 0, "started": False, "state": {"waiting": {"reason": "PodInitializing"}}}
    state = container.state
    if state.running:
        now: dict[str, Any] = {"running": {"startedAt": stamp(state.started)}}
    elif state.waiting or state.code is None:
        now = {"waiting": {"reason": state.waiting, "message": state.message}}
    else:
        now = {"terminated": _ended(container)}
    told |= {"ready": state.ready, "started": state.running, "restartCount": state.restarts, "state": now}
    return {**told, "lastState": state.before} if state.before else told

"""A FAKE of Kubernetes' API server, with a fake kubelet: the part of both that the operator needs, in this process.

`api_conformance` checks what it has in common with a real one. It has no authentication, no schemas, no admission
except what a test injects, and its server-side apply is a merge without owners of fields.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter, deque
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from aiohttp import web

from farandole.control.kubernetes.api.client import PLURALS
from farandole.control.kubernetes.kinds import KINDS

Obj = dict[str, Any]
Key = tuple[str, str, str]

_GROUPS = {
    "v1": [
        "ConfigMap",
        "Event",
        "Pod",
        "Secret",
        "Service",
        "ServiceAccount",
        "PersistentVolumeClaim",
        "Namespace",
        "Node",
    ],
    "rbac.authorization.k8s.io/v1": ["Role", "RoleBinding"],
    "coordination.k8s.io/v1": ["Lease"],
    "networking.k8s.io/v1": ["NetworkPolicy"],
    "apiextensions.k8s.io/v1": ["CustomResourceDefinition"],
    **{kind.api_version: [each.kind for each in KINDS if each.api_version == kind.api_version] for kind in KINDS},
}
_PLURALS = {
    **PLURALS,
    "Namespace": "namespaces",
    "Node": "nodes",
    "CustomResourceDefinition": "customresourcedefinitions",
}
_WITH_STATUS = {"pods", *(kind.plural for kind in KINDS)}
_HISTORY = 20_000


class Answer(Exception):
    """An answer other than the object."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason


class FakeApiServer:
    """A server of objects over HTTP, on a port of 127.0.0.1.

    Attributes:
        refuse: called before each creation with (plural, object); if it returns a text, the creation fails with 403.
        down: while it is True, connections are closed without an answer.
        lacks: plurals of kinds that are unknown, as on a server that is starting.
        silent: while it is True, watches receive nothing, not even their end, as if a firewall dropped the packets.
        says: the first data that new watches receive, which need not be an event.
        writes: the number of requests that changed an object, by (method, plural).
    """

    def __init__(self) -> None:
        self.objects: dict[Key, Obj] = {}
        self.refuse: Callable[[str, Obj], str] = lambda plural, obj: ""
        self.down = False
        self.lacks: set[str] = set()
        self.silent = False
        self.says = b""
        self.writes: Counter[tuple[str, str]] = Counter()
        self.url = ""
        self.oldest = 0
        self._version = itertools.count(1)
        self._last = 0
        self._uids = itertools.count(1)
        self._history: deque[tuple[int, str, str, Obj]] = deque(maxlen=_HISTORY)
        self._changed = asyncio.Condition()
        self._cut = 0
        self._runner: web.AppRunner | None = None

    # --- for tests ---

    async def start(self, port: int = 0) -> None:
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def close(self) -> None:
        await self.cut_watches()
        if self._runner is not None:
            await self._runner.cleanup()

    async def cut_watches(self) -> None:
        """Break all watches; clients reconnect and continue from their last version."""
        async with self._changed:
            self._cut += 1
            self._changed.notify_all()

    async def forget(self) -> None:
        """Drop all changes until now: watches that continue from an older version get 410."""
        self.oldest = self._last
        self._history.clear()

    def of(self, plural: str) -> list[Obj]:
        return [obj for (kind, _, _), obj in self.objects.items() if kind == plural]

    async def put(self, plural: str, obj: Obj) -> Obj:
        """Change an object outside of HTTP, as its kubelet or a user would."""
        return await self._store("MODIFIED", plural, obj)

    # --- requests ---

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if self.down:
            assert request.transport is not None
            request.transport.abort()
            return web.Response(status=503)
        try:
            return await self._route(request)
        except ConnectionResetError:
            # The client is gone.
            return web.Response(status=503)
        except Answer as answer:
            body = {"kind": "Status", "status": "Failure", "code": answer.code, "message": str(answer)}
            return web.json_response({**body, "reason": answer.reason}, status=answer.code)

    async def _route(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.strip("/").split("/")
        found = _discovery(parts)
        if found is not None:
            return web.json_response(found)
        rest = parts[2:] if parts[0] == "api" else parts[3:]
        namespace = ""
        if rest[:1] == ["namespaces"] and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        if not rest or rest[0] not in _PLURALS.values() or rest[0] in self.lacks:
            raise Answer(404, "NotFound", "the server could not find the requested resource")
        return await self._resource(request, namespace, *rest)

    async def _resource(
        self, request: web.Request, namespace: str, plural: str, name: str = "", part: str = ""
    ) -> web.StreamResponse:
        if request.method == "GET" and not name:
            if request.query.get("watch") == "true":
                return await self._watch(request, plural, namespace)
            return self._list(request, plural, namespace)
        if request.method == "GET":
            return web.json_response(self._get((plural, namespace, name)))
        body = json.loads(await request.read() or b"{}")
        self.writes[request.method, plural] += 1
        if request.method == "POST":
            return web.json_response(await self._create(plural, namespace, body), status=201)
        if request.method == "DELETE":
            return web.json_response(await self._delete((plural, namespace, name), body))
        if request.method == "PUT":
            return web.json_response(await self._replace((plural, namespace, name), body, part))
        content = request.content_type
        return web.json_response(await self._patch((plural, namespace, name), body, "apply" in content, part))

    def _get(self, key: Key) -> Obj:
        if key not in self.objects:
            raise Answer(404, "NotFound", f'{key[0]} "{key[2]}" not found')
        return self.objects[key]

    def _list(self, request: web.Request, plural: str, namespace: str) -> web.Response:
        selector = request.query.get("labelSelector", "")
        found = [obj for obj in self.of(plural) if _in(obj, namespace) and _selected(obj, selector)]
        # As a real one: items of a list do not say what kind they are.
        shown = [_shown(request, obj) for obj in found]
        items = [{key: value for key, value in obj.items() if key not in ("kind", "apiVersion")} for obj in shown]
        # As a real one: a list of bare metadata has null where there is nothing.
        listed = items if items or not _only_metadata(request) else None
        return web.json_response({"kind": "List", "metadata": {"resourceVersion": str(self._last)}, "items": listed})

    async def _create(self, plural: str, namespace: str, obj: Obj) -> Obj:
        obj["metadata"].setdefault("namespace", namespace)
        key = plural, namespace, obj["metadata"]["name"]
        if key in self.objects:
            raise Answer(409, "AlreadyExists", f'{plural} "{key[2]}" already exists')
        refused = self.refuse(plural, obj)
        if refused:
            raise Answer(403, "Forbidden", refused)
        obj["metadata"] |= {"uid": f"uid-{next(self._uids)}", "creationTimestamp": _now(), "generation": 1}
        if plural in _WITH_STATUS:
            obj["status"] = {"phase": "Pending"} if plural == "pods" else {}
        return await self._store("ADDED", plural, obj)

    async def _replace(self, key: Key, obj: Obj, part: str) -> Obj:
        old = self._get(key)
        self._check_version(old, obj)
        if part == "status":
            return await self._store("MODIFIED", key[0], {**old, "status": obj.get("status", {})})
        new = {**obj, "metadata": {**old["metadata"], **obj["metadata"]}}
        if key[0] in _WITH_STATUS:
            new["status"] = old.get("status", {})
        return await self._store("MODIFIED", key[0], new)

    async def _patch(self, key: Key, patch: Obj, apply: bool, part: str) -> Obj:
        if apply and key not in self.objects:
            return await self._create(key[0], key[1], patch)
        old = self._get(key)
        self._check_version(old, patch)
        if key[0] in _WITH_STATUS and part != "status":
            patch = {name: value for name, value in patch.items() if name != "status"}
        return await self._store("MODIFIED", key[0], _merged(old, patch, atomic=apply))

    async def _delete(self, key: Key, options: Obj) -> Obj:
        old = self._get(key)
        uid = (options.get("preconditions") or {}).get("uid")
        if uid and uid != old["metadata"]["uid"]:
            raise Answer(409, "Conflict", f"the UID in the precondition ({uid}) does not match the one in record")
        if key[0] == "pods" and options.get("gracePeriodSeconds") != 0:
            if old["metadata"].get("deletionTimestamp"):
                return old
            return await self._store("MODIFIED", "pods", _merged(old, {"metadata": {"deletionTimestamp": _now()}}))
        return await self.remove(key)

    async def remove(self, key: Key) -> Obj:
        """Remove an object and the objects that it owns at once."""
        obj = self.objects.pop(key, None)
        if obj is None:
            return {}
        await self._store("DELETED", key[0], obj)
        for other, child in list(self.objects.items()):
            owners = child["metadata"].get("ownerReferences") or []
            if any(owner["uid"] == obj["metadata"]["uid"] for owner in owners) and other in self.objects:
                await self.remove(other)
        return obj

    def _check_version(self, old: Obj, new: Obj) -> None:
        version = new.get("metadata", {}).get("resourceVersion")
        if version and version != old["metadata"]["resourceVersion"]:
            raise Answer(
                409, "Conflict", "the object has been modified; please apply your changes to the latest version"
            )

    async def _store(self, change: str, plural: str, obj: Obj) -> Obj:
        self._last = next(self._version)
        obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self._last)}}
        if change != "DELETED":
            metadata = obj["metadata"]
            self.objects[plural, metadata.get("namespace", ""), metadata["name"]] = obj
        self._history.append((self._last, change, plural, obj))
        async with self._changed:
            self._changed.notify_all()
        return obj

    # --- watching ---

    async def _watch(self, request: web.Request, plural: str, namespace: str) -> web.StreamResponse:
        since = int(request.query.get("resourceVersion") or 0)
        selector = request.query.get("labelSelector", "")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        if since < self.oldest:
            gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
            await response.write(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
            return response
        if self.says:
            await response.write(self.says)
        loop = asyncio.get_running_loop()
        cut, end = self._cut, loop.time() + float(request.query.get("timeoutSeconds", "3600"))
        while cut == self._cut and not self.down:
            while self.silent:
                await asyncio.sleep(0.05)
            for version, change, kind, obj in [item for item in self._news(since)]:
                since = version
                if kind == plural and _in(obj, namespace) and _selected(obj, selector):
                    event = {"type": change, "object": _shown(request, obj)}
                    await response.write(json.dumps(event).encode() + b"\n")
            async with self._changed:
                news = self._changed.wait_for(lambda: self._last > since or cut != self._cut)  # noqa: B023
                try:
                    await asyncio.wait_for(news, end - loop.time())
                except asyncio.TimeoutError:
                    if not self.silent:
                        return response
        if request.transport is not None:
            request.transport.abort()
        return response

    def _news(self, since: int) -> list[tuple[int, str, str, Obj]]:
        found = []
        for item in reversed(self._history):
            if item[0] <= since:
                break
            found.append(item)
        return found[::-1]


class FakeNode:
    """A FAKE kubelet and scheduler: pods run after a moment, and are removed when they are deleted.

    Attributes:
        finish: returns the final phase of a running pod; "": it continues to run.
        holds: returns whether a pod that has a node cannot start yet.
    """

    def __init__(self, server: FakeApiServer, start: float = 0.05, end: float = 0.05) -> None:
        self.server = server
        self.finish: Callable[[Obj], str] = lambda pod: ""
        self.holds: Callable[[Obj], bool] = lambda pod: False
        self._start, self._end = start, end

    async def run(self) -> None:
        """Manage pods, until cancelled."""
        while True:
            for key in [key for key in self.server.objects if key[0] == "pods"]:
                # What was done for the others took time: it may be gone, or another one.
                pod = self.server.objects.get(key)
                if pod is not None:
                    await self._look_after(pod)
            await asyncio.sleep(self._start)

    async def _look_after(self, pod: Obj) -> None:
        metadata, phase = pod["metadata"], pod["status"].get("phase")
        key = "pods", metadata["namespace"], metadata["name"]
        if metadata.get("deletionTimestamp"):
            await self.server.remove(key)
        elif phase == "Pending" and self.holds(pod):
            if not pod["spec"].get("nodeName"):
                await self.server.put("pods", {**pod, "spec": {**pod["spec"], "nodeName": "fake"}})
        elif phase == "Pending":
            ready = [{"type": "Ready", "status": "True"}]
            await self.server.put("pods", {**pod, "status": {"phase": "Running", "conditions": ready}})
        elif phase == "Running":
            ended = self.finish(pod)
            if ended:
                await self.server.put("pods", {**pod, "status": {"phase": ended}})


def _discovery(parts: list[str]) -> Obj | None:
    groups: dict[str, list[str]] = {}
    for version in _GROUPS:
        if "/" in version:
            groups.setdefault(version.partition("/")[0], []).append(version)
    if parts == ["version"]:
        return {"major": "1", "minor": "fake"}
    if parts == ["api"]:
        return {"kind": "APIVersions", "versions": ["v1"]}
    if parts == ["apis"]:
        return {"kind": "APIGroupList", "groups": [_group(name, versions) for name, versions in groups.items()]}
    version = "/".join(parts[1:])
    if parts[0] in ("api", "apis") and version in _GROUPS:
        return {"kind": "APIResourceList", "groupVersion": version, "resources": _resources(_GROUPS[version])}
    return None


def _group(name: str, versions: list[str]) -> Obj:
    listed = [{"groupVersion": item, "version": item.partition("/")[2]} for item in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def _resources(kinds: list[str]) -> list[Obj]:
    verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
    cluster = ("Namespace", "Node", "CustomResourceDefinition")
    found = [
        {"name": _PLURALS[kind], "kind": kind, "namespaced": kind not in cluster, "verbs": verbs, "singularName": ""}
        for kind in kinds
    ]
    subs = [{**item, "name": f"{item['name']}/status"} for item in found if item["name"] in _WITH_STATUS]
    return found + subs


def _in(obj: Obj, namespace: str) -> bool:
    return not namespace or obj["metadata"].get("namespace") == namespace


def _selected(obj: Obj, selector: str) -> bool:
    labels = obj["metadata"].get("labels") or {}

    def fits(part: str) -> bool:
        key, equal, value = part.partition("=")
        return labels.get(key) == value if equal else (key.removeprefix("!") in labels) != key.startswith("!")

    return all(fits(part) for part in selector.split(",") if part)


def _only_metadata(request: web.Request) -> bool:
    return "as=PartialObjectMetadata" in request.headers.get("Accept", "")


def _shown(request: web.Request, obj: Obj) -> Obj:
    """Return an object in the requested form: complete, or its metadata only."""
    if not _only_metadata(request):
        return obj
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}


def _merged(old: Any, patch: Any, atomic: bool = False) -> Any:
    """Merge a patch: None removes a key in a merge patch."""
    if not isinstance(old, dict) or not isinstance(patch, dict):
        return patch
    new = dict(old)
    for key, value in patch.items():
        if value is None and not atomic:
            new.pop(key, None)
        elif key == "data" and atomic:
            new[key] = value
        else:
            new[key] = _merged(old.get(key), value, atomic)
    return new


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")

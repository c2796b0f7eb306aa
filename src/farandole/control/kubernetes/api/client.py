"""The API server's resources, as plain JSON: each method of `Api` is one request.

lightkube provides the connection: kubeconfig, service account (whose token changes every hour), TLS. Its own request
methods are not used, because they support no preconditions (a deletion must name the uid of its object), and create a
typed object for every listed pod.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx2
import msgspec
from lightkube.config.client_adapter import AsyncClient, ConnectionParams
from lightkube.config.kubeconfig import KubeConfig, SingleConfig

from farandole.control.kubernetes import names
from farandole.control.kubernetes.api.errors import ApiError, NotSent, Silent, Unavailable, from_answer
from farandole.control.kubernetes.kinds import KINDS
from farandole.control.kubernetes.model import Object, Ref, ref_of

# Plurals of the kinds that the operator creates, beside its own kinds.
PLURALS = {
    "ConfigMap": "configmaps",
    "Event": "events",
    "Lease": "leases",
    "NetworkPolicy": "networkpolicies",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "Pod": "pods",
    "PodGroup": "podgroups",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "Secret": "secrets",
    "Service": "services",
    "ServiceAccount": "serviceaccounts",
    **{kind.kind: kind.plural for kind in KINDS},
}

_TIMEOUT = 30.0
# The server ends a watch after this time, and it is restarted. One without any event for slightly longer than that has
# a dead connection.
WATCH_SECONDS, _LATE_SECONDS = 20, 5
_PAGE = 500
# Requests only the metadata of each object.
_METADATA = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1"
_WHOLE = "application/json"


def default_config() -> SingleConfig:
    """Return address and credentials of the cluster: from KUBECONFIG, the pod's service account or ~/.kube/config."""
    return KubeConfig.from_env().get()


class Api:
    """A connection to one API server, which counts its requests by method."""

    def __init__(self, config: SingleConfig) -> None:
        self._client = AsyncClient(config, ConnectionParams(timeout=httpx2.Timeout(_TIMEOUT)))
        self.requests: dict[str, int] = {}

    async def close(self) -> None:
        """Close the connection."""
        await self._client.aclose()

    async def get(self, ref: Ref) -> dict[str, Any]:
        """Return an object."""
        return await self.send("GET", path_of(ref))

    async def create(self, obj: Object) -> dict[str, Any]:
        """Create an object."""
        ref = ref_of(obj)
        path = collection(ref.api_version, PLURALS[ref.kind], ref.namespace)
        return await self.send("POST", path, obj, {"fieldManager": names.OPERATOR})

    async def apply(self, obj: Object) -> dict[str, Any]:
        """Apply an object: the fields in it are set and owned by farandole; fields that others have set stay."""
        parameters = {"fieldManager": names.OPERATOR, "force": "true"}
        return await self.send("PATCH", path_of(ref_of(obj)), obj, parameters, "application/apply-patch+yaml")

    async def merge(self, ref: Ref, patch: Object) -> dict[str, Any]:
        """Change some fields of an object."""
        return await self.send("PATCH", path_of(ref), patch, None, "application/merge-patch+json")

    async def replace(self, obj: Object, part: str = "") -> dict[str, Any]:
        """Replace an object, or only its status; refused if it has changed since it was read."""
        return await self.send("PUT", path_of(ref_of(obj)) + (f"/{part}" if part else ""), obj)

    async def delete(self, ref: Ref, uid: str, grace: int | None = None) -> dict[str, Any]:
        """Delete an object, if it is the one with this uid."""
        options: dict[str, Any] = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        return await self.send("DELETE", path_of(ref), options)

    async def list(
        self, api_version: str, plural: str, namespace: str = "", selector: str = "", only_metadata: bool = False
    ) -> tuple[list[dict[str, Any]], str]:
        """Return all objects of a kind with some labels, and the version of the list."""
        accept = _METADATA.format("List") if only_metadata else _WHOLE
        parameters = {"limit": str(_PAGE)} | ({"labelSelector": selector} if selector else {})
        items: list[dict[str, Any]] = []
        while True:
            answer = await self.send("GET", collection(api_version, plural, namespace), None, parameters, accept=accept)
            # A list of bare metadata without items has null instead.
            items += answer["items"] or []
            token = answer["metadata"].get("continue")
            if not token:
                return items, str(answer["metadata"].get("resourceVersion", ""))
            parameters["continue"] = token

    @contextlib.asynccontextmanager
    async def watch(
        self,
        api_version: str,
        plural: str,
        version: str,
        namespace: str = "",
        selector: str = "",
        only_metadata: bool = False,
    ) -> AsyncIterator[AsyncIterator[tuple[str, dict[str, Any]]]]:
        """Watch a kind within the block, which begins once the server has accepted the watch.

        The iterator yields changes (ADDED, MODIFIED, DELETED, BOOKMARK) after a version, until the server ends it.
        """
        parameters = {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        } | ({"labelSelector": selector} if selector else {})
        timeout = httpx2.Timeout(_TIMEOUT, read=WATCH_SECONDS + _LATE_SECONDS)
        headers = {"Accept": _METADATA.format("") if only_metadata else _WHOLE}
        path = collection(api_version, plural, namespace)
        self._count("WATCH")
        try:
            async with self._client.stream(
                "GET", path, params=parameters, timeout=timeout, headers=headers
            ) as response:
                if response.status_code >= 300:
                    await response.aread()
                    raise refusal(response)
                yield self._events(response)
        except httpx2.HTTPError as error:
            raise no_answer("WATCH", path, error) from error

    async def _events(self, response: httpx2.Response) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        async for line in response.aiter_lines():
            if line:
                yield _event(line)

    async def send(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        parameters: Mapping[str, str] | None = None,
        content: str = "application/json",
        accept: str = _WHOLE,
    ) -> dict[str, Any]:
        """Send one request, and return the answer."""
        self._count(method)
        data, headers = encoded(body, content, accept)
        try:
            response = await self._client.request(method, path, content=data, params=parameters, headers=headers)
        except httpx2.HTTPError as error:
            raise no_answer(method, path, error) from error
        return read_answer(response)

    def _count(self, method: str) -> None:
        self.requests[method] = self.requests.get(method, 0) + 1


def collection(api_version: str, plural: str, namespace: str = "") -> str:
    """Return the path of all objects of a kind, in one namespace or in all."""
    root = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
    return f"{root}/namespaces/{namespace}/{plural}" if namespace else f"{root}/{plural}"


def path_of(ref: Ref) -> str:
    """Return the path of an object."""
    return f"{collection(ref.api_version, PLURALS[ref.kind], ref.namespace)}/{ref.name}"


def encoded(body: Object | None, content: str, accept: str = _WHOLE) -> tuple[bytes | None, dict[str, str]]:
    """Return the bytes of a request's body, and its headers."""
    data = json.dumps(body).encode() if body is not None else None
    return data, {"Content-Type": content, "Accept": accept, "User-Agent": names.OPERATOR}


def read_answer(response: httpx2.Response) -> dict[str, Any]:
    """Return the object in an answer.

    Raises:
        ApiError: the server refused, or another program answered.
    """
    if response.status_code >= 300:
        raise refusal(response)
    return _read(response.content)


def refusal(response: httpx2.Response) -> ApiError:
    """Return the error that an answer represents."""
    try:
        message = str(msgspec.json.decode(response.content).get("message", ""))
    except (msgspec.DecodeError, AttributeError, UnicodeDecodeError):
        message = response.text[:300]
    after = response.headers.get("Retry-After", "")
    return from_answer(response.status_code, message, float(after) if after.isdecimal() else None)


def no_answer(method: str, path: str, error: Exception) -> Unavailable:
    """Return the error for a missing answer, or for a connection that broke before the answer was complete."""
    kind = Unavailable
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        kind = NotSent
    elif isinstance(error, httpx2.ReadTimeout):
        kind = Silent
    return kind(0, f"the API server does not answer {method} {path}: {str(error) or type(error).__name__}")


_decode = msgspec.json.Decoder(dict[str, Any]).decode


def _read(content: bytes | str) -> dict[str, Any]:
    try:
        return _decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # Such as the page of a proxy, or a part of an answer that was cut off.
        raise Unavailable(0, f"this is not an answer of an API server: {error}") from None


def _event(line: str) -> tuple[str, dict[str, Any]]:
    event = _read(line)
    change, obj = event.get("type"), event.get("object")
    if not isinstance(change, str) or not isinstance(obj, dict):
        raise Unavailable(0, f"this is not an event of a watch: {line[:100]}")
    if change == "ERROR":
        raise from_answer(int(obj.get("code", 500)), str(obj.get("message", "")))
    return change, obj

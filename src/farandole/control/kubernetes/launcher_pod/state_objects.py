"""The two objects that a launcher pod may read and change, which belong to its job.

The *state* informs the operator about the training and its end. The *failover state* is for the next launcher pod only.
Both are ConfigMaps: to grant a launcher pod a right on a Secret, the operator would need that right on all Secrets, and
it has none. So the failover state is sealed (encrypted and authenticated) with a key derived from the job's secret,
which only pods of the job have. Its key `owner` names the launcher pod that owns the job: a pod that finds another name
there has been replaced although it is alive, and ends at once. So if there are two launcher pods, for example because a
node was only cut off, the older one never acts on its outdated state.

All calls block on the API server. While the job runs, `state_writer` and `report` make them in their own threads.
"""

from __future__ import annotations

import base64
import hashlib
import time
import zlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lightkube.config.kubeconfig import KubeConfig
from lightkube.core.exceptions import ConfigError

from farandole.control.kubernetes.api.blocking import BlockingApi
from farandole.control.kubernetes.api.client import path_of
from farandole.control.kubernetes.api.errors import ApiError, Conflict
from farandole.control.kubernetes.model import Object, Ref
from farandole.control.launcher.supervise.failover_files import PARTS

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

SECONDS = 10.0
# Seconds to wait for an answer on a connection that was used before.
REUSED_SECONDS = 3.0
# Seconds after which a launcher that cannot begin, or report the outcome, ends; the kubelet restarts it with back-off.
LONGEST_WAIT_SECONDS = 600.0
_MERGE = "application/merge-patch+json"
_OWNER, _ATTEMPT = "owner", "attempt"


class NotWritten(Exception):
    """The API server is unreachable, or refuses the request."""


class Changed(Exception):
    """The object's version is not the expected one."""


class StateObjects:
    """The two objects of one job.

    Args:
        namespace: namespace of the job.
        state: name of the state object.
        failover: name of the failover state object.
    """

    def __init__(self, namespace: str, state: str, failover: str) -> None:
        self._names = namespace, state, failover
        self._api: BlockingApi | None = None
        self._state = path_of(Ref("v1", "ConfigMap", namespace, state))
        self._failover = path_of(Ref("v1", "ConfigMap", namespace, failover))

    def again(self) -> StateObjects:
        """Return the same objects with a separate connection, for another thread."""
        return StateObjects(*self._names)

    def read_state(self) -> Mapping[str, str]:
        """Return the content of the state object.

        Raises:
            NotWritten: the API server is unreachable.
        """
        return dict(self._ask("GET", self._state).get("data") or {})

    def write_state(self, **texts: str) -> None:
        """Write keys of the state object.

        Raises:
            NotWritten: the API server is unreachable.
        """
        try:
            self._ask("PATCH", self._state, {"data": texts})
        except Changed:
            # No version was named; the server has given up because of concurrent writes.
            raise NotWritten(f"PATCH {self._state}: others write at the same time") from None

    def read_failover(self) -> tuple[dict[str, str], str]:
        """Return the content of the failover state, and the version of the object.

        Raises:
            NotWritten: the API server is unreachable.
        """
        found = self._ask("GET", self._failover)
        return dict(found.get("data") or {}), str(found["metadata"]["resourceVersion"])

    def write_failover(self, data: Mapping[str, str | None], version: str) -> str:
        """Replace some keys, and return the new version; None removes a key.

        Raises:
            NotWritten: the API server is unreachable.
            Changed: the object has been written since that version.
        """
        written = self._ask("PATCH", self._failover, {"data": data, "metadata": {"resourceVersion": version}})
        return str(written["metadata"]["resourceVersion"])

    def _connect(self) -> BlockingApi:
        return BlockingApi.connect(KubeConfig.from_service_account().get(), SECONDS)

    def _ask(self, method: str, path: str, body: Object | None = None) -> dict[str, Any]:
        # A connection that was used before may be dead; then a new one is opened.
        for seconds in (REUSED_SECONDS, SECONDS) if self._api is not None else (SECONDS,):
            try:
                self._api = self._api or self._connect()
                return self._api.send(method, path, body, content=_MERGE, seconds=seconds)
            except Conflict:
                raise Changed from None
            except (ApiError, ConfigError, OSError) as error:
                why = str(error)
                if isinstance(error, ApiError) and error.code:
                    break
                if self._api is not None:
                    self._api.close()
                self._api = None
        raise NotWritten(f"{method} {path}: {why}") from None


class SealedFailover:
    """The facts that a launcher saves for its successor, in the failover state. Methods that write block.

    Args:
        objects: the state objects of the job.
        read_secret: returns the secret of the job. If it has changed, everything is sealed again.
        pod: name of this launcher pod.
        attempt: number of the attempt of the training; the facts of earlier attempts are ignored.
        replaced: called when another launcher pod owns the job.
    """

    def __init__(
        self,
        objects: StateObjects,
        read_secret: Callable[[], bytes],
        pod: str,
        attempt: int,
        replaced: Callable[[], None],
    ) -> None:
        self._objects = objects
        self._read_secret = read_secret
        self._secret = read_secret()
        self._seal = _seal_of(self._secret)
        self._pod = pod
        self._attempt = str(attempt)
        self._replaced = replaced
        self._version = ""
        self._parts: dict[str, bytes] = {}
        """The parts that the previous launcher has left."""
        self._written: dict[str, bytes] = {}
        """The parts that are currently stored."""

    def claim(self, wait: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic) -> None:
        """Take ownership of the job: from now on, the previous launcher pod cannot write.

        Raises:
            NotWritten: the API server was unreachable for `LONGEST_WAIT_SECONDS` seconds.
        """
        deadline = clock() + LONGEST_WAIT_SECONDS
        while True:
            try:
                found, version = self._objects.read_failover()
                if found.get(_ATTEMPT) == self._attempt:
                    self._parts = self._opened(found)
                    self._written = dict(self._parts)
                mine: dict[str, str | None] = {_OWNER: self._pod, _ATTEMPT: self._attempt}
                if not self._parts:
                    mine |= dict.fromkeys(PARTS)
                self._version = self._objects.write_failover(mine, version)
                return
            except Changed:
                wait(0.2)  # The previous launcher has just written.
            except NotWritten as error:
                if clock() > deadline:
                    raise
                print(f"farandole: the launcher waits for the API server: {error}", flush=True)
                wait(1.0)

    def _opened(self, found: Mapping[str, str]) -> dict[str, bytes]:
        """Return the parts that a launcher of this job has sealed; all others are ignored."""
        from cryptography.fernet import InvalidToken

        try:
            return {part: zlib.decompress(self._seal.decrypt(found[part].encode())) for part in PARTS if part in found}
        except InvalidToken:
            print("warning: the failover state is not from this job, and is ignored", flush=True)
            return {}

    def write(self, parts: Mapping[str, bytes]) -> None:
        """Replace some parts. Blocks; other methods may be called meanwhile.

        Raises:
            NotWritten: the API server is unreachable.
        """
        if (secret := self._read_secret()) != self._secret:
            # The Secret was deleted and created again; the next launcher pod will have only the new one.
            self._secret, self._seal = secret, _seal_of(secret)
            parts = {**self._written, **parts}
        self._replace({part: self._sealed(content) for part, content in parts.items()})
        self._written.update(parts)

    def _sealed(self, content: bytes) -> str:
        return str(self._seal.encrypt(zlib.compress(content, 1)).decode())

    def _replace(self, data: Mapping[str, str | None]) -> None:
        while True:
            try:
                self._version = self._objects.write_failover(data, self._version)
                return
            except Changed:
                # It may be our own write whose answer was lost; otherwise it was another launcher's.
                found, self._version = self._objects.read_failover()
                if _OWNER not in found:
                    # The object was deleted, and the operator has created another one.
                    written = {part: self._sealed(content) for part, content in self._written.items()}
                    data = {_OWNER: self._pod, _ATTEMPT: self._attempt, **written, **data}
                elif found[_OWNER] != self._pod:
                    self._replaced()
                    raise NotWritten("another launcher pod has the job") from None

    def left(self, part: str) -> bytes | None:
        """Return the content of a part; None if there is none."""
        return self._parts.get(part)

    def is_whole(self) -> bool:
        """Return whether a job can be taken over from the parts."""
        return all(part in self._parts for part in PARTS)

    def clear(self) -> None:
        """Remove the parts: the job has ended, or starts again. Blocks; an unreachable API server is ignored."""
        self._parts, self._written = {}, {}
        try:
            self._replace(dict.fromkeys(PARTS))
        except NotWritten as error:
            print(f"warning: the failover state was not deleted: {error}", flush=True)


def _seal_of(secret: bytes) -> Fernet:
    from cryptography.fernet import Fernet  # It loads OpenSSL, which only this process needs.

    return Fernet(base64.urlsafe_b64encode(hashlib.sha256(b"farandole failover\0" + secret).digest()))

"""The two objects of its own job that a launcher pod may read and change.

The *state* tells the operator how the training is, and how it ended. The *failover state* is for the next launcher pod
only. Both are ConfigMaps: to give a launcher pod a right on a Secret, the operator would need it on all Secrets, and it
has none. So the failover state is sealed (encrypted, and with proof of who wrote it) by a key that is made of the job's
secret, which only pods of the job have. Its key `owner` says which launcher pod has the job: one that finds another
name there has been replaced, though it lives, and ends at once. So of two launcher pods, as when the node of one of
them was only cut off, the older one never acts on what it knows.

All of this waits for the API server. While the job runs, `state_writer` and `report` call it from threads of their own.
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
# To wait for an answer on a connection that was used before.
REUSED_SECONDS = 3.0
# A launcher that cannot begin, or tell the outcome, for so long ends; the kubelet starts it again, later and later.
LONGEST_WAIT_SECONDS = 600.0
_MERGE = "application/merge-patch+json"
_OWNER, _ATTEMPT = "owner", "attempt"


class NotWritten(Exception):
    """The API server is away, or refuses."""


class Changed(Exception):
    """The object is not in the version any more that was to be changed."""


class StateObjects:
    """The two objects of one job.

    Args:
        namespace: of the job.
        state: name of the object that tells the operator.
        failover: name of the other one.
    """

    def __init__(self, namespace: str, state: str, failover: str) -> None:
        self._names = namespace, state, failover
        self._api: BlockingApi | None = None
        self._state = path_of(Ref("v1", "ConfigMap", namespace, state))
        self._failover = path_of(Ref("v1", "ConfigMap", namespace, failover))

    def again(self) -> StateObjects:
        """Return the same with a connection of its own, for another thread."""
        return StateObjects(*self._names)

    def read_state(self) -> Mapping[str, str]:
        """Return what was told.

        Raises:
            NotWritten: the API server is away.
        """
        return dict(self._ask("GET", self._state).get("data") or {})

    def tell(self, **texts: str) -> None:
        """Tell the operator something.

        Raises:
            NotWritten: the API server is away.
        """
        try:
            self._ask("PATCH", self._state, {"data": texts})
        except Changed:
            # No version was named; the server has given up because others wrote at the same time.
            raise NotWritten(f"PATCH {self._state}: others write at the same time") from None

    def read_failover(self) -> tuple[dict[str, str], str]:
        """Return what the launcher before has left, and the version of the object.

        Raises:
            NotWritten: the API server is away.
        """
        found = self._ask("GET", self._failover)
        return dict(found.get("data") or {}), str(found["metadata"]["resourceVersion"])

    def write_failover(self, data: Mapping[str, str | None], version: str) -> str:
        """Replace some keys, and return the new version; None removes a key.

        Raises:
            NotWritten: the API server is away.
            Changed: it has been written since that version.
        """
        written = self._ask("PATCH", self._failover, {"data": data, "metadata": {"resourceVersion": version}})
        return str(written["metadata"]["resourceVersion"])

    def _connect(self) -> BlockingApi:
        return BlockingApi.connect(KubeConfig.from_service_account().get(), SECONDS)

    def _ask(self, method: str, path: str, body: Object | None = None) -> dict[str, Any]:
        # A connection that was used before may lead nowhere any more; then a new one is made.
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
    """What a launcher leaves to its successor, in the failover state of the API server. Everything that writes waits.

    Args:
        objects: of the job.
        read_secret: returns the secret of the job. When it is another one than before, all is sealed anew.
        pod: name of this launcher pod.
        attempt: of the training; what an earlier one has left is of no use.
        replaced: called when another launcher pod has the job.
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
        """What was left by the launcher before."""
        self._written: dict[str, bytes] = {}
        """What is there now."""

    def claim(self, wait: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic) -> None:
        """Have the job from now on: a launcher pod that had it before can write nothing any more.

        Raises:
            NotWritten: the API server was away for `LONGEST_WAIT_SECONDS`.
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
                wait(0.2)  # The one before was just writing.
            except NotWritten as error:
                if clock() > deadline:
                    raise
                print(f"farandole: the launcher waits for the API server: {error}", flush=True)
                wait(1.0)

    def _opened(self, found: Mapping[str, str]) -> dict[str, bytes]:
        """Return the parts that a launcher of this job has written; what anybody else has written is not read."""
        from cryptography.fernet import InvalidToken

        try:
            return {part: zlib.decompress(self._seal.decrypt(found[part].encode())) for part in PARTS if part in found}
        except InvalidToken:
            print("warning: what is left of the launcher before is not from this job, and is not used", flush=True)
            return {}

    def write(self, parts: Mapping[str, bytes]) -> None:
        """Replace some parts. Waits; other methods may be called meanwhile.

        Raises:
            NotWritten: the API server is away.
        """
        if (secret := self._read_secret()) != self._secret:
            # The Secret was deleted and made again; the next launcher pod will know only the new one.
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
                # Our own writing may have come through whose answer did not; else it was another launcher's.
                found, self._version = self._objects.read_failover()
                if _OWNER not in found:
                    # Somebody has deleted the object, and the operator has made another one.
                    written = {part: self._sealed(content) for part, content in self._written.items()}
                    data = {_OWNER: self._pod, _ATTEMPT: self._attempt, **written, **data}
                elif found[_OWNER] != self._pod:
                    self._replaced()
                    raise NotWritten("another launcher pod has the job") from None

    def left(self, part: str) -> bytes | None:
        """Return what was left; None: nothing was."""
        return self._parts.get(part)

    def is_whole(self) -> bool:
        """Return whether a job can be taken over from what was left."""
        return all(part in self._parts for part in PARTS)

    def clear(self) -> None:
        """Leave nothing: the job has ended, or begins anew. Waits, and does without where the API server is away."""
        self._parts, self._written = {}, {}
        try:
            self._replace(dict.fromkeys(PARTS))
        except NotWritten as error:
            print(f"warning: what was left for a successor of this launcher was not deleted: {error}", flush=True)


def _seal_of(secret: bytes) -> Fernet:
    from cryptography.fernet import Fernet  # With it comes OpenSSL, which only this process needs.

    return Fernet(base64.urlsafe_b64encode(hashlib.sha256(b"farandole failover\0" + secret).digest()))

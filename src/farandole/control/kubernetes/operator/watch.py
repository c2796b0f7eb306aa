"""Keeps the store up to date with the cluster: one watch for each kind of jobs, and of objects that jobs own.

A watch lists, follows the changes after that, and lists again when it may have missed some. Objects that are not in a
list do not exist any more. However an attempt ends, the next one begins within `LONGEST_REST` seconds: `run` returns
only when it is cancelled. The operator's probes ask each watch for its state.

Secrets are neither listed nor watched: the right to list them is the right to read their content.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from farandole.control.kubernetes import names
from farandole.control.kubernetes.api.client import PLURALS, Api
from farandole.control.kubernetes.api.errors import ApiError, Gone, NotFound
from farandole.control.kubernetes.kinds import Kind
from farandole.control.kubernetes.model import Object
from farandole.control.kubernetes.operator.backoff import rest
from farandole.control.kubernetes.operator.store import ClusterStore, JobKey

log = logging.getLogger("farandole.operator")

SELECTOR = f"{names.MANAGED_BY_LABEL}={names.OPERATOR}"
# Objects that a job owns, and that often change without relevance for the operator.
UNMARKED = f"{names.KIND_LABEL},!{names.MANAGED_BY_LABEL}"
_FIRST_REST, LONGEST_REST = 0.5, 5.0
# Seconds: an attempt that ends earlier proves nothing, and the next one may end as early.
_SHORT_SECONDS = 0.5
# Seconds that a watch may be down before its operator is not ready.
DOWN_SECONDS = 15.0
# Seconds without any activity of a watch before it counts as stuck: attempts and events are much more frequent.
STUCK_SECONDS = 300.0


@dataclass
class Watch(ABC):
    """A watch of one kind.

    Attributes:
        api_version, kind: the kind that is watched.
        namespace: the only namespace in which it is watched; "" for all.
        selector: the labels of the objects; "" for all objects.
        only_metadata: whether only the metadata of the objects is read.
        may_lack: whether the operator works without this kind, which other software installs.
        synced: set when everything has been listed once.
        relists: number of times that everything had to be listed, for the metrics.
    """

    api: Api
    store: ClusterStore
    api_version: str
    kind: str
    namespace: str = ""
    selector: str = ""
    only_metadata: bool = False
    may_lack: bool = False
    clock: Callable[[], float] = time.monotonic
    synced: asyncio.Event = field(default_factory=asyncio.Event)
    relists: int = 0

    def __post_init__(self) -> None:
        self.plural = PLURALS[self.kind]
        self._down_since: float | None = self.clock()
        self._sign = self.clock()
        self._trouble = ""

    @abstractmethod
    def _put(self, obj: dict[str, Any]) -> None:
        """Store an object that was listed or has changed."""

    @abstractmethod
    def _remove(self, obj: dict[str, Any]) -> None:
        """Remove a deleted object from the store."""

    @abstractmethod
    def _keep_only(self, items: list[dict[str, Any]], version: str) -> None:
        """Remove all objects from the store that are not in a list of this version."""

    # --- state ---

    def why_not_ready(self) -> str:
        """Return why the operator is not ready because of this watch; "" if it is."""
        down = self.clock() - self._down_since if self._down_since is not None else 0.0
        if self.synced.is_set() and down <= DOWN_SECONDS:
            return ""
        what = f"has been down for {down:.0f} s" if self.synced.is_set() else "has not listed everything yet"
        return f"the watch of {self.plural} {what}" + (f": {self._trouble}" if self._trouble else "")

    def why_not_alive(self) -> str:
        """Return why this watch makes the liveness probe fail; "" if it does not."""
        silent = self.clock() - self._sign
        return f"the watch of {self.plural} has been stuck for {silent:.0f} s" if silent > STUCK_SECONDS else ""

    # --- the loop ---

    async def run(self) -> None:
        """List and watch, until cancelled."""
        version, shorts = "", 0
        while True:
            began = self._sign = self.clock()
            trouble = ""
            try:
                version = version or await self._list()
                version = await self._follow(version)
            except Exception as error:
                # An outdated version is usual. A list that was too slow for its server is not.
                if not (isinstance(error, Gone) and version):
                    trouble = str(error) or type(error).__name__
                    self._log_trouble(trouble, error)
                # It is uncertain which changes the server still knows: a list is complete.
                version = ""
                if self.may_lack and isinstance(error, NotFound):
                    self.synced.set()
            self._down_since = self._down_since if self._down_since is not None else self.clock()
            shorts = shorts + 1 if self.clock() - began < _SHORT_SECONDS else 0
            # After one short attempt without trouble, no rest: this is how a long outage ends.
            if trouble or shorts > 1:
                await asyncio.sleep(rest(max(0, shorts - 1), _FIRST_REST, LONGEST_REST))

    async def _list(self) -> str:
        items, version = await self.api.list(
            self.api_version, self.plural, self.namespace, self.selector, self.only_metadata
        )
        complete = [self._complete(item) for item in items]
        self._keep_only(complete, version)
        for item in complete:
            self._put(item)
        self.relists += 1
        self.synced.set()
        return version

    async def _follow(self, version: str) -> str:
        """Handle changes after a version until the server ends the watch; return the version to continue from."""
        async with self.api.watch(
            self.api_version, self.plural, version, self.namespace, self.selector, self.only_metadata
        ) as changes:
            self._note_up()
            async for change, obj in changes:
                self._sign = self.clock()
                version = str(obj["metadata"].get("resourceVersion", version))
                if change == "DELETED":
                    self._remove(self._complete(obj))
                elif change != "BOOKMARK":
                    self._put(self._complete(obj))
        return version

    def _note_up(self) -> None:
        self._down_since, self._sign = None, self.clock()
        if self._trouble:
            log.info("the watch of %s is up again", self.plural)
        self._trouble = ""

    def _log_trouble(self, trouble: str, error: Exception) -> None:
        """Log a problem, once while it stays the same."""
        if trouble != self._trouble:
            unexpected = None if isinstance(error, ApiError) else error
            log.warning("the watch of %s is down: %s", self.plural, trouble, exc_info=unexpected)
        self._trouble = trouble

    def _complete(self, obj: Object) -> dict[str, Any]:
        """Return an object with its own kind, which is missing in lists, and wrong in objects with only metadata."""
        return {**obj, "apiVersion": self.api_version, "kind": self.kind}


class JobWatch(Watch):
    """The watch of one kind of jobs, or of queues."""

    @classmethod
    def of(cls, api: Api, store: ClusterStore, kind: Kind, namespace: str) -> JobWatch:
        """Return the watch of a kind that the operator serves."""
        return cls(api, store, kind.api_version, kind.kind, namespace)

    def _put(self, obj: dict[str, Any]) -> None:
        self.store.put_job(self._key(obj), obj)

    def _remove(self, obj: dict[str, Any]) -> None:
        self.store.remove_job(self._key(obj), obj["metadata"]["uid"])

    def _keep_only(self, items: list[dict[str, Any]], version: str) -> None:
        self.store.keep_only_jobs(self.plural, items, version)

    def _key(self, job: Object) -> JobKey:
        return JobKey(self.plural, job["metadata"]["namespace"], job["metadata"]["name"])


class ChildWatch(Watch):
    """The watch of one kind of objects that jobs own; with metadata only, it reports only creation and deletion."""

    def _put(self, obj: dict[str, Any]) -> None:
        self.store.put_child(obj, self.only_metadata)

    def _remove(self, obj: dict[str, Any]) -> None:
        self.store.remove_child(obj)

    def _keep_only(self, items: list[dict[str, Any]], version: str) -> None:
        self.store.keep_only(self.api_version, self.kind, items, version, self._selects)

    def _selects(self, child: Object) -> bool:
        """Return whether an object belongs to this watch: ConfigMaps have two, by the operator's label."""
        marked = (child["metadata"].get("labels") or {}).get(names.MANAGED_BY_LABEL) == names.OPERATOR
        return marked == (self.selector == SELECTOR)

"""Keeps the store up to date with the cluster: one watch for each kind of jobs, and of what jobs own.

A watch lists, follows the changes from there, and lists again when it cannot know what it has missed. A list is what is
there, so what is not in it is gone. However an attempt ends, the next one begins within `LONGEST_REST` seconds: `run`
returns only when it is cancelled. The operator's probes ask each watch how it is.

Secrets are neither listed nor watched: whoever may list them reads what is in them.
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
from farandole.control.kubernetes.operator.store import JobKey, Store

log = logging.getLogger("farandole.operator")

SELECTOR = f"{names.MANAGED_BY_LABEL}={names.OPERATOR}"
# What a job owns, and changes often without concern to the operator.
UNMARKED = f"{names.KIND_LABEL},!{names.MANAGED_BY_LABEL}"
_FIRST_REST, LONGEST_REST = 0.5, 5.0
# An attempt that has ended sooner than that has told nothing, and the next one may end as soon.
_SHORT_SECONDS = 0.5
# Seconds for which a watch may be down before its operator is not ready.
DOWN_SECONDS = 15.0
# Seconds without any sign of a watch before it counts as stuck: it begins an attempt or hears something much sooner.
STUCK_SECONDS = 300.0


@dataclass
class Watch(ABC):
    """A watch of one kind.

    Attributes:
        api_version, kind: what is watched.
        namespace: the only one in which it is watched; "" is all of them.
        selector: the labels of the objects, "" for all objects.
        only_metadata: whether no more than the metadata of the objects is read.
        may_lack: whether the operator works without this kind, which others install.
        synced: set when everything has been listed once.
        relists: the number of times that everything had to be listed, for the metrics.
    """

    api: Api
    store: Store
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
        """Take an object that was deleted out of the store."""

    @abstractmethod
    def _keep_only(self, items: list[dict[str, Any]], version: str) -> None:
        """Take all objects out of the store that are not in a list of this version."""

    # --- how it is ---

    def why_not_ready(self) -> str:
        """Return why the operator is not ready as far as this watch is concerned; "" if it is."""
        down = self.clock() - self._down_since if self._down_since is not None else 0.0
        if self.synced.is_set() and down <= DOWN_SECONDS:
            return ""
        what = f"has been down for {down:.0f} s" if self.synced.is_set() else "has not listed everything yet"
        return f"the watch of {self.plural} {what}" + (f": {self._trouble}" if self._trouble else "")

    def why_not_alive(self) -> str:
        """Return why the operator should be ended as far as this watch is concerned; "" if it should not."""
        silent = self.clock() - self._sign
        return f"the watch of {self.plural} has been stuck for {silent:.0f} s" if silent > STUCK_SECONDS else ""

    # --- what it does ---

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
                # That a version is too old is usual. A list that was too slow for its server is not.
                if not (isinstance(error, Gone) and version):
                    trouble = str(error) or type(error).__name__
                    self._tell(trouble, error)
                # Which of the changes meanwhile the server still knows is not certain: a list is.
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
        """Take changes from a version on until the server ends the watch, and return the version to go on from."""
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

    def _tell(self, trouble: str, error: Exception) -> None:
        """Log what has gone wrong, once for as long as it is the same."""
        if trouble != self._trouble:
            unexpected = None if isinstance(error, ApiError) else error
            log.warning("the watch of %s is down: %s", self.plural, trouble, exc_info=unexpected)
        self._trouble = trouble

    def _complete(self, obj: Object) -> dict[str, Any]:
        """Return an object with its own kind, which items of lists leave out and bare metadata say otherwise."""
        return {**obj, "apiVersion": self.api_version, "kind": self.kind}


class JobWatch(Watch):
    """The watch of one kind of jobs, or of queues."""

    @classmethod
    def of(cls, api: Api, store: Store, kind: Kind, namespace: str) -> JobWatch:
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
    """The watch of one kind of what jobs own; where only metadata are read, only what comes and goes counts."""

    def _put(self, obj: dict[str, Any]) -> None:
        self.store.put_child(obj, self.only_metadata)

    def _remove(self, obj: dict[str, Any]) -> None:
        self.store.remove_child(obj)

    def _keep_only(self, items: list[dict[str, Any]], version: str) -> None:
        self.store.keep_only(self.api_version, self.kind, items, version, self._selects)

    def _selects(self, child: Object) -> bool:
        """Return whether an object is one of this watch: ConfigMaps have two, by the operator's label."""
        marked = (child["metadata"].get("labels") or {}).get(names.MANAGED_BY_LABEL) == names.OPERATOR
        return marked == (self.selector == SELECTOR)

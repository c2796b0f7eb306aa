"""Lists and watches what jobs own, with the operator's label: kopf would read every pod of the cluster.

A list is what is there, so what is not in it is gone, whatever the watch before it has missed.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from farandole.kubernetes import names
from farandole.kubernetes.operator.api import PLURALS, Api
from farandole.kubernetes.operator.errors import ApiError, Gone, NotFound
from farandole.kubernetes.operator.store import Store

log = logging.getLogger("farandole.operator")

SELECTOR = f"{names.MANAGED_BY_LABEL}={names.OPERATOR}"
_FIRST_BACKOFF, _LONGEST_BACKOFF = 0.5, 30.0


@dataclass
class ChildWatch:
    """Keeps the store up to date with one kind of children.

    Attributes:
        synced: set when everything has been listed once.
        relists: how often everything had to be listed, for the metrics.
    """

    api: Api
    store: Store
    api_version: str
    kind: str
    namespace: str = ""
    synced: asyncio.Event = field(default_factory=asyncio.Event)
    relists: int = 0

    async def run(self) -> None:
        """List and watch, until cancelled."""
        version, failures = "", 0
        while True:
            try:
                if not version:
                    version = await self._list()
                version = await self._watch(version)
                failures = 0
            except Gone:
                # No wait: this is how a long outage ends.
                version = ""
            except NotFound:
                # The kind is not installed: there are none, until it is.
                self.synced.set()
                await asyncio.sleep(_LONGEST_BACKOFF)
            except ApiError as error:
                delay = min(_FIRST_BACKOFF * 2.0**failures, _LONGEST_BACKOFF)
                failures += 1
                log.warning("watch of %s: %s; again in %g s", PLURALS[self.kind], error, delay)
                # Which of the changes meanwhile the server still knows is not certain: a list is.
                version = ""
                await asyncio.sleep(delay)

    async def _list(self) -> str:
        plural = PLURALS[self.kind]
        items, version = await self.api.list(self.api_version, plural, self.namespace, SELECTOR)
        complete = [{"apiVersion": self.api_version, "kind": self.kind, **item} for item in items]
        self.store.keep_only(self.api_version, self.kind, complete, version)
        for item in complete:
            self.store.put_child(item)
        self.relists += 1
        self.synced.set()
        return version

    async def _watch(self, version: str) -> str:
        changes = self.api.watch(self.api_version, PLURALS[self.kind], version, self.namespace, SELECTOR)
        async for change, obj in changes:
            version = str(obj["metadata"].get("resourceVersion", version))
            if change == "DELETED":
                self.store.remove_child(obj)
            elif change != "BOOKMARK":
                self.store.put_child({"apiVersion": self.api_version, "kind": self.kind, **obj})
        return version

"""Lists and watches what jobs own, with the operator's label: kopf would read every pod of the cluster.

A list is what is there, so what is not in it is gone, whatever the watch before it has missed.

Secrets are neither listed nor watched: whoever may list them reads what is in them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import Any

from farandole.kubernetes import names
from farandole.kubernetes.model import Object
from farandole.kubernetes.operator.api import PLURALS, Api
from farandole.kubernetes.operator.backoff import rest
from farandole.kubernetes.operator.errors import ApiError, Gone, NotFound
from farandole.kubernetes.operator.store import Store

log = logging.getLogger("farandole.operator")

SELECTOR = f"{names.MANAGED_BY_LABEL}={names.OPERATOR}"
# What a job owns, and changes often without concern to the operator.
UNMARKED = f"{names.KIND_LABEL},!{names.MANAGED_BY_LABEL}"
_FIRST_BACKOFF, _LONGEST_BACKOFF = 0.5, 30.0
# A watch that has ended sooner than that has told nothing, and the next one may end as soon.
_SHORT_SECONDS = 0.5


@dataclass
class ChildWatch:
    """Keeps the store up to date with one kind of children.

    Attributes:
        selector: of the labels that they have.
        only_existence: of these, only what comes and goes is to be known, and by its metadata.
        synced: set when everything has been listed once.
        relists: how often everything had to be listed, for the metrics.
    """

    api: Api
    store: Store
    api_version: str
    kind: str
    namespace: str = ""
    selector: str = SELECTOR
    only_existence: bool = False
    synced: asyncio.Event = field(default_factory=asyncio.Event)
    relists: int = 0

    async def run(self) -> None:
        """List and watch, until cancelled."""
        version, failures, short = "", 0, 0
        while True:
            began = time.monotonic()
            try:
                if not version:
                    version = await self._list()
                version = await self._watch(version)
                failures = 0
            except Gone:
                version = ""
            except NotFound:
                # The kind is not installed: there are none, until it is.
                self.synced.set()
                await asyncio.sleep(_LONGEST_BACKOFF)
            except ApiError as error:
                delay = rest(failures, _FIRST_BACKOFF, _LONGEST_BACKOFF)
                failures += 1
                log.warning("watch of %s: %s; again in %g s", PLURALS[self.kind], error, delay)
                # Which of the changes meanwhile the server still knows is not certain: a list is.
                version = ""
                await asyncio.sleep(delay)
            short = short + 1 if time.monotonic() - began < _SHORT_SECONDS else 0
            # Once, no wait: this is how a long outage ends. Again and again, it is the server's trouble.
            if short > 1:
                await asyncio.sleep(rest(short - 2, _FIRST_BACKOFF, _LONGEST_BACKOFF))

    async def _list(self) -> str:
        plural = PLURALS[self.kind]
        items, version = await self.api.list(
            self.api_version, plural, self.namespace, self.selector, self.only_existence
        )
        complete = [self._complete(item) for item in items]
        self.store.keep_only(self.api_version, self.kind, complete, version, self._selects)
        for item in complete:
            self.store.put_child(item, self.only_existence)
        self.relists += 1
        self.synced.set()
        return version

    async def _watch(self, version: str) -> str:
        changes = self.api.watch(
            self.api_version, PLURALS[self.kind], version, self.namespace, self.selector, self.only_existence
        )
        async for change, obj in changes:
            version = str(obj["metadata"].get("resourceVersion", version))
            if change == "DELETED":
                self.store.remove_child(self._complete(obj))
            elif change != "BOOKMARK":
                self.store.put_child(self._complete(obj), self.only_existence)
        return version

    def _complete(self, obj: Object) -> dict[str, Any]:
        """Return an object with its own kind, which items of lists leave out and bare metadata say otherwise."""
        return {**obj, "apiVersion": self.api_version, "kind": self.kind}

    def _selects(self, child: Object) -> bool:
        """Say whether this watch is for an object of its kind: ConfigMaps have two, by the operator's label."""
        marked = (child["metadata"].get("labels") or {}).get(names.MANAGED_BY_LABEL) == names.OPERATOR
        return marked == (self.selector == SELECTOR)

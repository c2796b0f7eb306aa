"""Leader election by a Lease: one of several operators reconciles, and another takes over when it falls silent.

The holder of the Lease renews it every few seconds. Clocks of machines are not compared: a Lease has expired when this
operator has not seen it change for its duration. The holder stops leading before others take over.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from farandole.control.kubernetes import names
from farandole.control.kubernetes.api.client import Api
from farandole.control.kubernetes.api.errors import ApiError, NotFound
from farandole.control.kubernetes.model import Ref

log = logging.getLogger("farandole.operator")

# Seconds after which a silent operator has lost the Lease.
DURATION = 15.0
# Fractions of that: within the first its holder must have renewed it, and after the second it tries to.
RENEW_WITHIN, EVERY = 10 / 15, 2 / 15


class Election:
    """One operator's part in the election.

    Args:
        renewed: called at every renewal of the Lease, every few seconds; with True if the Lease was not held before.
        duration: seconds until the Lease expires; see `DURATION`.
    """

    def __init__(
        self,
        api: Api,
        namespace: str,
        identity: str,
        renewed: Callable[[bool], None],
        duration: float = DURATION,
        name: str = names.OPERATOR,
    ) -> None:
        self._duration = duration
        self._api = api
        self._ref = Ref("coordination.k8s.io/v1", "Lease", namespace, name)
        self._identity = identity
        self._on_renewal = renewed
        self._renewed = float("-inf")
        self._told = False
        self._seen: tuple[str, float] = ("", float("-inf"))
        self._turn = asyncio.Lock()
        """Locked while the Lease is read and written."""
        self._is_over = False

    @property
    def leading(self) -> bool:
        """Return whether this operator may write. This needs no request, and is correct even while requests fail."""
        return time.monotonic() < self._renewed + RENEW_WITHIN * self._duration

    async def run(self) -> None:
        """Take part until cancelled; do nothing once the Lease was released."""
        while True:
            async with self._turn:
                if not self._is_over:
                    try:
                        await asyncio.wait_for(self._try(), RENEW_WITHIN * self._duration)
                    except (ApiError, asyncio.TimeoutError) as error:
                        log.warning("leader election: %s", str(error) or "no answer in time")
            self._log_result()
            await asyncio.sleep(EVERY * self._duration)

    async def release(self) -> None:
        """Release the Lease, so that another operator can take over at once, and stop taking part."""
        self._is_over = True
        async with self._turn:
            if not self.leading:
                return
            self._renewed = float("-inf")
            try:
                lease = await self._api.get(self._ref)
                if lease["spec"].get("holderIdentity") == self._identity:
                    lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
                    await self._api.replace({**lease, "apiVersion": self._ref.api_version, "kind": self._ref.kind})
            except ApiError as error:
                log.warning("leader election: the lease was not released: %s", error)

    async def _try(self) -> None:
        started = time.monotonic()
        try:
            lease = await self._api.get(self._ref)
        except NotFound:
            await self._api.create(self._lease({}, 0))
            self._renewed = started
            return
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        version = str(lease["metadata"].get("resourceVersion"))
        if version != self._seen[0]:
            self._seen = (version, started)
        silent = started - self._seen[1]
        if holder not in ("", self._identity) and silent < float(spec.get("leaseDurationSeconds") or self._duration):
            return
        changes = int(spec.get("leaseTransitions") or 0) + (holder != self._identity)
        # With the version that was read: of two concurrent writes, one is refused.
        answer = await self._api.replace(self._lease(lease, changes))
        self._seen = (str(answer["metadata"].get("resourceVersion")), started)
        self._renewed = started

    def _lease(self, lease: dict[str, Any], transitions: int) -> dict[str, Any]:
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = lease.get("spec") or {}
        ours = before.get("holderIdentity") == self._identity
        return {
            "apiVersion": self._ref.api_version,
            "kind": self._ref.kind,
            "metadata": lease.get("metadata", {"name": self._ref.name, "namespace": self._ref.namespace}),
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": int(self._duration),
                "acquireTime": before.get("acquireTime", now) if ours else now,
                "renewTime": now,
                "leaseTransitions": transitions,
            },
        }

    def _log_result(self) -> None:
        """Log the result. Since the last call, the Lease may have lapsed and been renewed, unnoticed by others."""
        news, self._told = self.leading != self._told, self.leading
        if news:
            log.info(
                "%s",
                "this operator leads" if self._told else "another operator leads, or none can be reached",
            )
        if self._told:
            self._on_renewal(news)

"""What the launcher tells the operator of the training, every few seconds, if it has changed."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from farandole.kubernetes.launcher_pod.state_objects import NotWritten, StateObjects
from farandole.kubernetes.training_job.own_names import STATUS_KEY
from farandole.launcher.supervise.elastic_job import ElasticJob

LOOK_SECONDS = 1.0
# What changes with every step is told this often.
QUIET_SECONDS = 10.0


class Report:
    """Tells of one job.

    Args:
        objects: where it is told.
        attempt: of the training.
    """

    def __init__(self, objects: StateObjects, attempt: int) -> None:
        self._objects = objects
        self._attempt = attempt
        self._told: dict[str, Any] = {}
        self._told_at = 0.0

    async def run(self, job: ElasticJob) -> None:
        """Tell, until this is cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = describe(job)
            if self._is_news(now):
                await self._tell(now)

    def _is_news(self, now: dict[str, Any]) -> bool:
        fast = ("steps", "stepsPerSecond")
        slow = [{key: value for key, value in each.items() if key not in fast} for each in (now, self._told)]
        return slow[0] != slow[1] or (now != self._told and time.monotonic() - self._told_at > QUIET_SECONDS)

    async def _tell(self, now: dict[str, Any]) -> None:
        try:
            text = json.dumps({**now, "attempt": self._attempt}, sort_keys=True)
            await asyncio.to_thread(self._objects.tell, **{STATUS_KEY: text})
        except NotWritten:
            return
        self._told, self._told_at = now, time.monotonic()


def describe(job: ElasticJob) -> dict[str, Any]:
    """Return how a job is, as plain data."""
    status = job.status()
    ranks = [
        {"worker": worker, "pod": row.name, "state": row.state} for row in job.list_hosts() for worker in row.workers
    ]
    told: dict[str, Any] = {
        "size": status["size"],
        "generation": status["generation"],
        "waitsFor": status["waits_for"],
        "ranks": ranks,
    }
    return told

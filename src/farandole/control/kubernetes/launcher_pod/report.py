"""What the launcher tells the operator of the training, within seconds of a change."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from farandole.control.kubernetes.launcher_pod.state_objects import NotWritten, StateObjects
from farandole.control.kubernetes.training_job.own_names import STATUS_KEY
from farandole.control.launcher.supervise.elastic_job import ElasticJob

LOOK_SECONDS = 1.0
# What has not changed is told again this often: somebody may have deleted the object.
REPEAT_SECONDS = 60.0


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
        return now != self._told or time.monotonic() - self._told_at > REPEAT_SECONDS

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

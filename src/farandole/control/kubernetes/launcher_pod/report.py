"""Reports the state of the training to the operator, within seconds of a change."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from farandole.control.kubernetes.launcher_pod.state_objects import NotWritten, StateObjects
from farandole.control.kubernetes.training_job.own_names import STATUS_KEY
from farandole.control.launcher.supervise.elastic_job import ElasticJob

LOOK_SECONDS = 1.0
# Seconds after which an unchanged report is repeated: a user may have deleted the object.
REPEAT_SECONDS = 60.0


class StateReporter:
    """Reports on one job.

    Args:
        objects: the state objects of the job.
        attempt: number of the attempt of the training.
    """

    def __init__(self, objects: StateObjects, attempt: int) -> None:
        self._objects = objects
        self._attempt = attempt
        self._told: dict[str, Any] = {}
        self._told_at = 0.0

    async def run(self, job: ElasticJob) -> None:
        """Report until this is cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = describe(job)
            if self._is_news(now):
                await self._write(now)

    def _is_news(self, now: dict[str, Any]) -> bool:
        return now != self._told or time.monotonic() - self._told_at > REPEAT_SECONDS

    async def _write(self, now: dict[str, Any]) -> None:
        try:
            text = json.dumps({**now, "attempt": self._attempt}, sort_keys=True)
            await asyncio.to_thread(self._objects.write_state, **{STATUS_KEY: text})
        except NotWritten:
            return
        self._told, self._told_at = now, time.monotonic()


def describe(job: ElasticJob) -> dict[str, Any]:
    """Return the state of a job as plain data."""
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

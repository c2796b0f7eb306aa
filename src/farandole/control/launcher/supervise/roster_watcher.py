"""What the roster of an elastic job tells the launcher, and what follows from it."""

from __future__ import annotations

import time
from collections.abc import Callable

from farandole.control.launcher.slots import slot_events as events
from farandole.control.launcher.supervise.elastic_policy import ElasticPolicy
from farandole.control.roster.events import Hold
from farandole.control.roster.watcher import Watcher, WorldChange


class RosterWatcher(Watcher):
    """Takes what the roster says of worlds and of single workers.

    Args:
        log: takes lines that are printed with --verbose only.
    """

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log

    def tell(self, policy: ElasticPolicy) -> None:
        """Tell this policy from now on."""
        self._policy = policy

    def world_begins(self, change: WorldChange) -> None:
        """A world was announced to its workers."""
        policy, workers = self._policy, self._policy.job.workers
        workers.world, workers.generation = change.workers, change.generation
        for worker in change.workers:
            workers.by_number[worker].was_member = True
        policy.messages.waits(Hold(""))
        policy.job.background.spawn(_tell(policy, change, time.time()))
        policy.happened(events.WorldBegan(change.workers))

    def finishes(self, finishing: bool) -> None:
        """Workers have finished, as far as is known, or have not."""
        self._policy.happened(events.Finishing(finishing))

    def asks_to_leave(self, worker: int, why: str) -> None:
        """A worker is to leave, though its host stays."""
        self._policy.happened(events.WorkerLeaves(worker, why))

    def evicts(self, worker: int, why: str) -> None:
        """This worker, if it lives, is to be killed."""
        self._log(f"worker {worker} is ended: {why}")
        by_number = self._policy.job.workers.by_number
        if worker in by_number:
            by_number[worker].stop(0)

    def waits(self, hold: Hold) -> None:
        """The job waits for something; for nothing, if the hold has no kind."""
        self._policy.messages.waits(hold)

    def ends(self, reason: str) -> None:
        """There will be no other world."""
        self._policy.end_job(events.EndJob(reason))


async def _tell(policy: ElasticPolicy, change: WorldChange, at: float) -> None:
    """Tell of a world, and remember it, when it is known how those ended that it has lost."""
    await policy.messages.world(change)
    policy.job.history.world_begins(change, policy.job.workers, at)
    policy.writer.changes(policy.decider.state)  # A successor is to know it, too.

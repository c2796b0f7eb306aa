"""The interface by which the roster of an elastic job tells the launcher what happens to it."""

from __future__ import annotations

import msgspec

from farandole.control.roster.events import Departure, Hold


class WorldChange(msgspec.Struct, frozen=True):
    """What has become of a job's world."""

    generation: int
    workers: tuple[int, ...]
    """By rank."""
    previous: tuple[int, ...]
    """By rank: the rank in the world before, or -1."""
    lost: tuple[Departure, ...]
    """The workers of the world before that are not in this one."""
    seconds: float
    """Since the world before was turned away from; since this roster began, for the first world."""
    reason: str
    finished: tuple[Departure, ...] = ()
    """The workers of the world before that are not in this one because they have left in good order."""


class Watcher:
    """Is told what happens to an elastic job, in the roster's loop. This one does nothing."""

    def world_begins(self, change: WorldChange) -> None:
        """A world was announced to its workers."""

    def asks_to_leave(self, worker: int, why: str) -> None:
        """This worker wants to leave, such as after SIGTERM; nothing has followed from that yet."""

    def finishes(self, finishing: bool) -> None:
        """Workers have left in good order, as far as is known: newcomers are refused; or not any more."""

    def evicts(self, worker: int, why: str) -> None:
        """This worker, if it lives, is to be killed."""

    def waits(self, hold: Hold) -> None:
        """The job waits for something; for nothing, if the hold has no kind."""

    def ends(self, reason: str) -> None:
        """There will be no other world."""

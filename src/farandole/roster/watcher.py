"""Who hears what becomes of a job whose workers come and go: the roster's way to the launcher."""

from __future__ import annotations

import msgspec

from farandole.roster.words import Departure, Hold


class WorldChange(msgspec.Struct, frozen=True):
    """What has become of a job's world."""

    generation: int
    workers: tuple[int, ...]
    """By rank."""
    previous: tuple[int, ...]
    """By rank: the rank in the world before, or -1."""
    lost: tuple[Departure, ...]
    """Of the world before, who is not in this one."""
    seconds: float
    """Since the world before was turned away from; since this roster began, for the first world."""
    reason: str


class Watcher:
    """Hears what becomes of a job whose workers come and go, in the roster's loop; this one keeps it to itself."""

    def world_begins(self, change: WorldChange) -> None:
        """A world was announced to its workers."""

    def evicts(self, worker: int, why: str) -> None:
        """This worker, if it lives, is to be killed."""

    def waits(self, hold: Hold) -> None:
        """The job waits for something; for nothing, if the hold has no kind."""

    def ends(self, reason: str) -> None:
        """There will be no other world."""

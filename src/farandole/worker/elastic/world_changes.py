"""The worker's side of a change of the world: whether the world is about to change, and how to enter the next one."""

from __future__ import annotations

import msgspec

from farandole.base.wire.rendezvous import World
from farandole.worker.core import basics


class Change(msgspec.Struct, frozen=True):
    """A change of the world that is due at the end of a step."""

    added: int
    """The number of waiting newcomers."""
    removed: int
    """The number of members that must leave."""
    reason: str
    """The reason in one line, for the user."""


def is_elastic() -> bool:
    """Return whether there can be a next world. False without a world."""
    session = basics.session_if_any()
    return session is not None and session.notices is not None


def pending_change() -> Change | None:
    """Return the announced change of the current world that this worker has not followed yet, or None."""
    notices = basics.current().notices
    notice = None if notices is None else notices.change
    return None if notice is None else Change(notice.added, notice.removed, notice.reason)


def coming() -> int:
    """Return the number of workers that have been started and have not joined yet."""
    notices = basics.current().notices
    return 0 if notices is None else notices.coming


def is_broken() -> bool:
    """Return whether the current world has ended, so that collectives in it fail."""
    return basics.current().engine.cause() is not None


def arrive() -> World:
    """Enter a world, if `init()` has only previewed it: `init()` does not wait while other workers prepare.

    No-op for a worker that is already in a world.

    Raises:
        EvictedError, StartError: as in `reform`.
    """
    return reform() if basics.current().world.generation == 0 else basics.current().world


def reform(open: bool = True) -> World:
    """Leave the world, which ends for all its workers, and enter the next one, in the same process.

    Blocks until there is one. The session, its engine and the content of the arena are kept; process sets except the
    world's own are unregistered.

    Args:
        open: whether newcomers may enter it; false in the middle of a step.

    Raises:
        EvictedError: this worker has been removed from the job.
        StartError: there is no next world: the job is not elastic, or has had too few workers for too long.
    """
    change = pending_change()
    rank = basics.rank()
    why = f"rank {rank} makes way for the next world: {change.reason if change else 'it lost its own'}"
    basics.reform(why, open)
    return basics.current().world


def progress() -> None:
    """Record that a state was committed, so that a failure of the engine before is not the cause of a later one."""
    session = basics.session_if_any()
    if session is not None:
        session.own_failures.progress()


def trained(training: int = 0) -> None:
    """Record that this worker has the job's state from now on, so that others may get it from here.

    Args:
        training: the number of the training among the script's, from 1; 0: trainings are not counted.
    """
    session = basics.current()
    if (training or not session.trained) and session.roster is not None:
        session.roster.report_state(training)
    session.trained = True

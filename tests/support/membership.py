"""Events and states of elastic jobs, for tests of the rules of membership."""

from __future__ import annotations

from farandole.base.wire.rendezvous import Accused
from farandole.control.roster.elastic import ElasticState, Limits, decide
from farandole.control.roster.events import (
    Action,
    Announce,
    Event,
    Expected,
    Joined,
    Suspected,
)


def after(state: ElasticState, *events: Event) -> ElasticState:
    for event in events:
        state, _, _ = decide(state, event)
    return state


def started(*workers: int, least: int = 1, most: int = 4, reset_limit: int | None = None) -> ElasticState:
    limits = Limits(least, most, reset_limit=reset_limit)
    return after(ElasticState(limits), *(Expected(worker, f"h{worker}") for worker in workers))


def world(*workers: int, least: int = 1, most: int = 4, reset_limit: int | None = None) -> ElasticState:
    """Return a job whose first world has begun."""
    fresh = started(*workers, least=least, most=most, reset_limit=reset_limit)
    return after(fresh, *(Joined(worker, f"at {worker}") for worker in workers))


def again(worker: int, generation: int = 1, *, lost: tuple[Accused, ...] = (), open: bool = True) -> Joined:
    """Return the join of a worker that was in a world."""
    return Joined(worker, f"at {worker}", generation=generation, trained=True, accused=lost, open=open)


def newcomer(worker: int) -> tuple[Event, ...]:
    return Expected(worker, f"h{worker}"), Joined(worker, f"at {worker}")


def announced(actions: tuple[Action, ...]) -> tuple[int, ...]:
    """Return the workers of the announced world; (): none is announced."""
    return next((action.workers for action in actions if isinstance(action, Announce)), ())


def dead(rank: int) -> tuple[Accused, ...]:
    return (Accused(rank, "closed its connections", True),)


def silent(rank: int) -> tuple[Accused, ...]:
    return (Accused(rank, "is silent", False),)


def stopped(worker: int) -> Suspected:
    """Return the launcher's report that a worker's process is stopped."""
    return Suspected((worker,), "was stopped", stopped=True)


def unreached(rank: int) -> tuple[Accused, ...]:
    return (Accused(rank, "could not be reached", False, True),)

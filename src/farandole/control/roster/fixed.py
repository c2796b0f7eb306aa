"""Membership of a job of fixed size: a pure function, and the plain data it works on.

Every worker that joins waits until all have joined; then the next generation is announced to all of them. A worker
whose process has exited is *gone* for good, and from then on no world can be completed. `arrivals` decides how long
workers that have joined wait for the others.

The hosts of the ranks are either planned by a launcher, or reported by each worker when it joins.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from farandole.control.roster.arrivals import hold_for_arrivals, too_late
from farandole.control.roster.events import (
    Action,
    Announce,
    Event,
    Failed,
    Finished,
    FinishedTogether,
    Hold,
    HoldOver,
    HoldsState,
    Joined,
    JoinedTogether,
    Leaves,
    Left,
    LeftTogether,
    Lost,
    Place,
    Refuse,
    find_places,
    ranks,
    workers_by_how,
)


class FixedState(msgspec.Struct, frozen=True, tag="fixed"):
    """The state of the roster of a job of fixed size. A worker's number is its rank."""

    places: tuple[Place | None, ...]
    """Places by rank; None for each rank: the workers report their places."""
    generation: int = 0
    """Number of the latest world; 0: there was none. The first is 1."""
    members: frozenset[int] = frozenset()
    """Workers in the latest world that have not left it."""
    waiting: dict[int, Joined] = {}
    """The unanswered join of each waiting worker, in the order of their arrival."""
    gone: tuple[tuple[int, str], ...] = ()
    """Workers whose processes have exited, in the order of their exits, each with a description of its end."""
    state_held: bool = False
    """Whether any worker has held the job's state."""
    hold: Hold = Hold("")
    """The reason why the job waits."""

    @property
    def size(self) -> int:
        """Number of workers in a complete world."""
        return len(self.places)


_ONE_JOIN = "the service takes one join of a worker at a time"
Decision = tuple[FixedState, tuple[Action, ...], str]


def decide(state: FixedState, event: Event) -> Decision:
    """Return the next state, the actions, and the reason in one line.

    Example:
        >>> alone = FixedState(places=(Place("here", 0, 1, 0, 1),))
        >>> state, actions, reason = decide(alone, Joined(0, "unix:a"))
        >>> actions[0].generation, actions[0].contacts
        (1, ('unix:a',))
        >>> reason
        'rank 0 joined; all 1 are here: generation 1 begins'
    """
    if isinstance(event, JoinedTogether):
        state, actions, reason = _joined_together(state, event)
    else:
        state, actions, reason = _apply(state, event)
    hold = _what_is_awaited(state)
    if hold == state.hold:
        return state, actions, reason
    return msgspec.structs.replace(state, hold=hold), (*actions, hold), reason


def joins_needed(state: FixedState) -> int:
    """Return the number of workers that must join before anything follows from their joins."""
    return 0 if state.gone else state.size - len(state.waiting)


def _what_is_awaited(state: FixedState) -> Hold:
    here = len(state.waiting)
    # The timeout of the latest worker counts, as its arrival restarts the time.
    seconds = next(reversed(state.waiting.values())).timeout if here else 0.0
    return hold_for_arrivals(lambda: ranks(_missing(state)), state.size - here, here, seconds)


def _missing(state: FixedState) -> list[int]:
    return [rank for rank in range(state.size) if rank not in state.waiting]


def _apply(state: FixedState, event: Event) -> Decision:
    if isinstance(event, Joined):
        return _joined(state, event)
    if isinstance(event, Left):
        return _left(state, (event,))
    if isinstance(event, LeftTogether):
        return _left(state, event.goodbyes)
    if isinstance(event, HoldsState):
        reason = "" if state.state_held else f"rank {event.worker} holds the job's state"
        return msgspec.structs.replace(state, state_held=True), (), reason
    if isinstance(event, Lost):
        return _lost(state, event)
    if isinstance(event, Leaves):
        return state, (), f"rank {event.worker} asks to leave, but the job has a fixed size: {event.why}"
    if isinstance(event, Failed):
        return state, (), f"rank {event.worker} reports that it failed: {event.exception}"
    if isinstance(event, Finished):
        return _finished(state, (event,))
    if isinstance(event, FinishedTogether):
        return _finished(state, event.ends)
    if isinstance(event, HoldOver):
        return _hold_over(state)
    raise AssertionError(f"{type(event).__name__} cannot happen in a job of fixed size")


def _joined(state: FixedState, event: Joined) -> Decision:
    worker = event.worker
    if not 0 <= worker < state.size:
        why = f"worker {worker} is not one of the {state.size} workers of this job: is its FARANDOLE_RANK wrong?"
        return state, (Refuse(worker, why),), why
    assert worker not in state.waiting, _ONE_JOIN
    if state.gone:
        rank, how = state.gone[0]
        why = _cannot_complete(rank, how)
        return state, (Refuse(worker, why, rank),), f"rank {worker} joined, but {why}"
    if _only_waits(state, event, 0):
        state = _with_joins(state, {worker: event})
        return state, (), _here(state, worker)
    waiting = {**state.waiting, worker: event}
    generation = state.generation + 1
    by_rank = [waiting[rank] for rank in range(state.size)]
    contacts = tuple(joined.contact for joined in by_rank)
    places = tuple(place for place in state.places if place is not None) or find_places(
        [(joined.host, joined.hostname) for joined in by_rank]
    )
    next_state = msgspec.structs.replace(state, generation=generation, members=frozenset(range(state.size)), waiting={})
    why = f"rank {worker} joined; all {state.size} are here: generation {generation} begins"
    return next_state, (Announce(generation, contacts, places),), why


def _joined_together(state: FixedState, event: JoinedTogether) -> Decision:
    """Apply the joins in their order. Those that do not complete the world are added at once, because each addition
    copies the collection of joins."""
    actions: list[Action] = []
    reasons: list[str] = []
    adding: dict[int, Joined] = {}
    for each in event.joins:
        if _only_waits(state, each, len(adding)):
            assert each.worker not in state.waiting and each.worker not in adding, _ONE_JOIN
            adding[each.worker] = each
            continue
        state, more, reason = _joined(_with_joins(state, adding), each)
        actions += more
        reasons.append(reason)
        adding = {}
    if adding:
        state = _with_joins(state, adding)
        reasons.append(_here(state, event.joins[-1].worker))
    return state, tuple(actions), "; ".join(reasons)


def _only_waits(state: FixedState, event: Joined, before: int) -> bool:
    """Return whether a worker that joins is not refused, and does not complete the world.

    Args:
        state: state of the roster.
        event: the join.
        before: number of joins that came just before, which are not in the state yet.
    """
    return 0 <= event.worker < state.size and not state.gone and len(state.waiting) + before + 1 < state.size


def _with_joins(state: FixedState, joins: dict[int, Joined]) -> FixedState:
    if not joins:
        return state
    # A worker that joins has left the old world, even without a Left event.
    waiting = {**state.waiting, **joins}
    return msgspec.structs.replace(state, waiting=waiting, members=state.members.difference(joins))


def _here(state: FixedState, worker: int) -> str:
    return f"rank {worker} joined; {len(state.waiting)} of {state.size} are here"


def _left(state: FixedState, goodbyes: Sequence[Left]) -> Decision:
    leavers = {each.worker for each in goodbyes if each.generation == state.generation} & state.members
    reasons = [f"{ranks(leavers)} left generation {state.generation}"] if leavers else []
    for each in goodbyes:
        if each.worker not in leavers:
            reasons.append(f"rank {each.worker} left generation {each.generation}, which is over for it")
    return msgspec.structs.replace(state, members=state.members - leavers), (), "; ".join(reasons)


def _lost(state: FixedState, event: Lost) -> Decision:
    waiting = {worker: joined for worker, joined in state.waiting.items() if worker != event.worker}
    next_state = msgspec.structs.replace(state, waiting=waiting)
    return next_state, (), f"rank {event.worker} closed its connection and no longer waits"


def _finished(state: FixedState, ends: Sequence[Finished]) -> Decision:
    first = ends[0]
    why = _cannot_complete(first.worker, first.how)
    others = [worker for worker in state.waiting if worker != first.worker]
    next_state = msgspec.structs.replace(
        state,
        waiting={},
        members=state.members.difference(each.worker for each in ends),
        gone=(*state.gone, *((each.worker, each.how) for each in ends)),
    )
    refusals = tuple(Refuse(worker, why, first.worker) for worker in others)
    reason = "; ".join(f"{ranks(workers)} {how}" for how, workers in workers_by_how(ends).items())
    return next_state, refusals, f"{reason}; {ranks(others)} waited for it" if others else reason


def _hold_over(state: FixedState) -> Decision:
    if not state.waiting:
        return state, (), "nothing is waited for any more"
    absent, here = _missing(state), list(state.waiting)
    why = too_late(ranks(absent), len(absent), len(here), state.hold.seconds)
    # All at once: if one gave up alone, the others would wait in vain.
    return msgspec.structs.replace(state, waiting={}), tuple(Refuse(worker, why) for worker in here), why


def _cannot_complete(rank: int, how: str) -> str:
    return f"the world of workers cannot be completed: rank {rank} {how} before it joined"

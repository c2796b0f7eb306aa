"""Membership of an elastic job: a pure function, and the plain data it works on.

A world is *turned away from* when one of its members is lost, or joins again. Its members then join again, one after
the other; a join says that this worker will do nothing more in the old world. A member that has not joined and is not
known to be dead is waited for. A member that is not heard of is counted out, unless that would count out more workers
than it leaves: those may be the larger part of a world that was cut in two, so this part waits, and then ends.

The next world has the old one's members in their old order, and after them newcomers, the lowest number first. Workers
that hold the job's state come before all others, which get it from them.

Newcomers never disturb a world by themselves: its members are told, and join again at the end of a step. A world that
breaks in the middle of one is followed by a world of all its survivors and nobody else, in which they finish the step.

The *roll* has every worker that may join: it was started, has not ended, and was not counted out or asked to leave. A
worker that is not on the roll is refused, however late it comes. So all else that is known of a world can be forgotten
when the next one begins.

A worker that leaves a world in good order has finished, unless its process then ends otherwise than with exit code 0:
it leaves before its exit code is known. Then it is lost, like one that was killed. A worker that ends with exit code 0
before there is any world has finished, too: the first world, if there is one, has those that are left, if they are
enough.
"""

from __future__ import annotations

import msgspec

from farandole.control.roster.arrivals import START, too_late
from farandole.control.roster.events import (
    Action,
    Announce,
    Drained,
    EndOverdue,
    Event,
    Evict,
    Evicted,
    Expected,
    Failed,
    Finished,
    HoldOver,
    HoldsState,
    Joined,
    Leaves,
    Left,
    Lost,
    Promised,
    Refuse,
    Resized,
    Revoke,
    Show,
    Suspected,
)
from farandole.control.roster.membership import (
    MAJORITY_SECONDS,
    Limits,
    Outcome,
    State,
    accusations,
    bar,
    changed,
    departures,
    dismiss,
    free_device_number,
    missing,
    names,
    strike,
    without,
    without_join,
)
from farandole.control.roster.next_world import FINISHING, MEMBERS, end, settle

__all__ = ["MAJORITY_SECONDS", "Decision", "Limits", "State", "decide"]

Decision = tuple[State, tuple[Action, ...], str]


def decide(state: State, event: Event) -> Decision:
    """Return the next state, what to do, and the one line that says why.

    Example:
        >>> state, _, _ = decide(State(Limits(1, 2)), Expected(0, "earth"))
        >>> state, actions, reason = decide(state, Joined(0, "unix:a"))
        >>> actions[-1].generation, actions[-1].contacts
        (1, ('unix:a',))
        >>> reason
        'worker 0 on earth joined; generation 1 begins with 1 worker'
    """
    state, actions, reason = _note(state, event)
    state, more, outcome = settle(state)
    reasons = [reason, outcome]
    if any(isinstance(action, Announce) for action in more):
        # Some may wait already to come into this world, or are to leave it.
        state, notices, change = settle(state)
        more, reasons = more + notices, [*reasons, change]
    return state, (*actions, *more), "; ".join(filter(None, reasons))


# --- what an event says ---------------------------------------------------------------------------------------------


def _note(state: State, event: Event) -> Outcome:
    if isinstance(event, Joined):
        return _joined(state, event)
    if isinstance(event, Finished):
        return _finished(state, event)
    if isinstance(event, Suspected):
        return _suspected(state, event)
    if isinstance(event, Evicted):
        return _evicted(state, event)
    if isinstance(event, Drained):
        return _drained(state, event)
    if isinstance(event, Leaves):
        return _drained(state, Drained((event.worker,), event.why))
    if isinstance(event, Left):
        return _left(state, event)
    if isinstance(event, HoldsState):
        holding = changed(state, state_held=True, training=max(state.training, event.training))
        return holding, [], "" if holding == state else f"{state.name(event.worker)} holds the job's state"
    if isinstance(event, Lost):
        return without_join(state, event.worker), [], f"{state.name(event.worker)} closed its connection"
    if isinstance(event, Failed):
        return _failed(state, event)
    if isinstance(event, EndOverdue):
        why = "it has failed, and does not end"
        return state, [Evict(event.worker, why)], f"{state.name(event.worker)} is ended: {why}"
    if isinstance(event, Expected):
        hosts = {**state.hosts, event.worker: event.host}
        state = changed(state, expected=state.expected | {event.worker}, hosts=hosts)
        return state, [], f"{state.name(event.worker)} is started"
    if isinstance(event, Resized):
        limits = msgspec.structs.replace(state.limits, min_size=event.min_size, max_size=event.max_size)
        return changed(state, limits=limits), [], f"{limits.in_words} from now on"
    if isinstance(event, Promised):
        words = "workers will be started soon" if event.coming else "no workers are about to be started"
        return changed(state, promised=event.coming), [], words
    return _hold_over(state, event)


def _joined(state: State, event: Joined) -> Outcome:
    worker = event.worker
    why = _why_not(state, worker)
    if why:
        state = strike(state, worker) if worker not in state.members else state
        return state, [Refuse(worker, why, evicted=not state.ended)], f"{state.name(worker)} is refused: {why}"
    if event.arriving and state.active() and worker not in state.members:
        # It is still expected: what it has to prepare may take some time.
        number = free_device_number(state, worker)
        numbers = {**state.device_numbers, worker: (state.hosts[worker], number)}
        shown = changed(state, device_numbers=numbers)
        return shown, [Show(worker, number)], f"{state.name(worker)} has arrived, and prepares itself"
    if worker in state.done:
        # It begins another training. So may the others that have left: they are waited for until they join or end.
        state = changed(state, done=frozenset(), exiting=frozenset(), finished=False)
    state = changed(
        state,
        waiting=(*without_join(state, worker).waiting, event),
        expected=state.expected - {worker},
        # It lives, whatever others have reported.
        suspects=without(state.suspects, worker),
        gone=state.gone - {worker},
        lost=tuple(departure for departure in state.lost if departure.worker != worker),
    )
    state, actions = _believe(state, event)
    return state, actions, f"{state.name(worker)} joined"


def _why_not(state: State, worker: int) -> str:
    """Return why a worker is not wanted, or "" if it is."""
    if state.ended:
        return state.ended
    if worker not in state.hosts:
        return "the job goes on without it: it was counted out, or asked to leave"
    if state.finishing and state.generation and worker not in state.members:
        return FINISHING
    return ""


def _believe(state: State, event: Joined) -> tuple[State, list[Action]]:
    """Record the losses that a worker reports, and tell the members that still form that world.

    These do not notice a loss by themselves.

    A worker that has joined lives, whatever others report.
    """
    actions: list[Action] = []
    joined = state.joined()
    for accusation in accusations(state, event):
        worker = state.members[accusation.rank]
        if worker in joined or worker not in state.active():
            continue
        if accusation.forming:
            continue  # The other one may have given that world up for another reason, and may be about to join.
        if accusation.left:
            state = _without_leaver(state, worker)  # Its own message may come later.
            continue
        if accusation.certain:
            actions += _revocation(state, worker, accusation.how, certain=True)
        state = changed(state, lost=departures(state, worker, accusation.how))
        if accusation.certain:
            state = changed(state, suspects=without(state.suspects, worker), gone=state.gone | {worker})
        elif worker not in state.suspects:
            state = changed(state, suspects={**state.suspects, worker: accusation.how})
    return state, actions


def _finished(state: State, event: Finished) -> Outcome:
    worker = event.worker
    reason = f"{state.name(worker)} {event.how}"
    if worker in state.exiting:
        state = changed(state, exiting=state.exiting - {worker}, finished=state.finished or not event.failed)
        if event.failed:
            state = changed(state, done=state.done - {worker})
    elif worker in state.hosts and not (state.generation or event.failed):
        state = changed(state, finished=True)
    actions = _revocation(state, worker, event.how, certain=True)
    lost = departures(state, worker, event.how)
    state = strike(state, worker)
    gone = state.gone | ({worker} & set(state.members))
    state = changed(state, gone=gone, lost=lost, device_numbers=without(state.device_numbers, worker))
    return state, actions, reason


def _failed(state: State, event: Failed) -> Outcome:
    """Count a worker that reports its failure as gone, however long its process takes to end."""
    worker, how = event.worker, f"raised {event.exception}"
    reason = f"{state.name(worker)} reports that it failed: {event.exception}"
    if worker not in state.hosts:
        return state, [], reason
    actions = _revocation(state, worker, how, certain=True)
    lost = departures(state, worker, how)
    state, more = dismiss(state, worker, f"it has failed: {event.exception}")
    return changed(state, gone=state.gone | ({worker} & set(state.members)), lost=lost), actions + more, reason


def _suspected(state: State, event: Suspected) -> Outcome:
    actions: list[Action] = []
    reason = f"not heard of: {names(state, event.workers)}: {event.how}"
    for worker in event.workers:
        if worker in state.active():
            actions += _revocation(state, worker, event.how, certain=False)
            lost = departures(state, worker, event.how)
            # Even if it has joined: announcing a world to it would be in vain.
            state = changed(state, suspects={**state.suspects, worker: event.how}, lost=lost)
        elif worker in state.joined():
            state, more = bar(state, worker, event.how)
            actions += more
    return state, actions, reason


def _drained(state: State, event: Drained) -> Outcome:
    """Let members finish their step. Newcomers have none, and are refused at once."""
    reason = f"asked to leave: {names(state, event.workers)}: {event.why}"
    members = set(event.workers).intersection(state.active())
    actions: list[Action] = []
    for worker in event.workers:
        if worker in state.hosts and worker not in state.members:
            state, more = dismiss(state, worker, f"it was asked to leave: {event.why}")
            actions += more
    return changed(state, leaving=state.leaving | members), actions, reason


def _evicted(state: State, event: Evicted) -> Outcome:
    worker = event.worker
    if worker not in state.hosts:
        return state, [], f"{state.name(worker)} is counted out already, or has ended"
    reason = f"{state.name(worker)} is counted out: {event.why}"
    actions = _revocation(state, worker, event.why, certain=False)
    state, more = bar(state, worker, event.why)
    return state, actions + more, reason


def _left(state: State, event: Left) -> Outcome:
    reason = f"{state.name(event.worker)} left generation {event.generation}"
    if event.generation == state.generation and event.worker in state.active():
        return _without_leaver(state, event.worker), [], reason
    return state, [], f"{reason}, which is over for it"


def _without_leaver(state: State, worker: int) -> State:
    return changed(state, done=state.done | {worker}, exiting=state.exiting | {worker})


def _hold_over(state: State, event: HoldOver) -> Outcome:
    if event.kind != state.hold.kind:
        return state, [], "there is nothing to wait for any more"
    if event.kind == START:
        absent, here = names(state, state.expected), len(state.waiting)
        reason = too_late(absent, len(state.expected), here, state.hold.seconds)
        if here >= state.limits.min_size:
            return changed(state, expected=frozenset()), [], reason
        return *end(state, reason), reason
    waited, what = f"waited {state.hold.seconds:g} s", state.hold.reason
    reason = f"{waited} {what.removeprefix('waits ')}" if what.startswith("waits for ") else f"{waited}: {what}"
    if event.kind == MEMBERS:
        how = f"did not come within {state.hold.seconds:g} s"
        for worker in missing(state):
            lost = departures(state, worker, how)
            state = changed(state, suspects={**state.suspects, worker: how}, lost=lost)
        return state, [], reason
    return *end(state, reason), reason


def _revocation(state: State, worker: int, how: str, *, certain: bool) -> list[Action]:
    if worker not in state.active() or any(each.worker == worker for each in state.lost):
        return []
    others = tuple(each for each in state.active() if each != worker and each not in state.joined())
    return [Revoke(others, state.generation, state.members.index(worker), how, certain)] if others else []

"""Membership of an elastic job: a pure function, and the plain data it works on.

A world is *abandoned* when one of its members is lost, or joins again. Its members then join again one by one; a join
means that the worker will do nothing more in the old world. A member that has not joined and is not known to be dead is
waited for. A silent member is *excluded*, unless more workers would be excluded than are left: these may be the larger
part of a partitioned world, so the smaller part waits, and then ends.

A join shows that its sender is not silent, but a process may be stopped right after it has sent one. So if the launcher
has reported before that the process is stopped, the join counts only when it reports that the process runs again.

The next world has the members of the old one in their old order, then the newcomers, the lowest number first. Workers
that hold the job's state come before all others, which get it from them.

Newcomers never disturb a running world: its members are notified, and join again at the end of a step. A world that
breaks in the middle of a step is followed by a world of its survivors only, in which they finish the step.

The *roll* lists every worker that may join: it was started, has not ended, and was neither excluded nor asked to leave.
A worker that is not on the roll is refused, however late it joins. So everything else that is known about a world can
be forgotten when the next one begins.

A worker that leaves a world gracefully has finished, unless its process then ends with an exit code other than 0, which
is known only later. In that case it is lost, like a worker that was killed. A worker that ends with exit code 0 before
there is any world has finished, too: the first world consists of the remaining workers, if there are enough of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from farandole.control.roster.arrivals import START, too_late
from farandole.control.roster.events import (
    Action,
    Announce,
    Continued,
    Drained,
    EndOverdue,
    Event,
    Evict,
    Evicted,
    Expected,
    Failed,
    Finished,
    FinishedTogether,
    HoldOver,
    HoldsState,
    Joined,
    JoinedTogether,
    Leaves,
    Left,
    LeftTogether,
    Lost,
    Promised,
    Refuse,
    Resized,
    Revoke,
    Show,
    Suspected,
    workers_by_how,
)
from farandole.control.roster.membership import (
    MAJORITY_SECONDS,
    ElasticState,
    Limits,
    Outcome,
    accusations,
    changed,
    continued,
    departures,
    dismiss,
    exclude,
    free_device_number,
    missing,
    missing_at_least,
    names,
    remove_from_roll,
    with_gone,
    without,
    without_join,
)
from farandole.control.roster.next_world import FINISHING, MEMBERS, STOPPED, end, settle

__all__ = ["MAJORITY_SECONDS", "Decision", "ElasticState", "Limits", "decide"]

Decision = tuple[ElasticState, tuple[Action, ...], str]


def decide(state: ElasticState, event: Event) -> Decision:
    """Return the next state, the actions, and the reason in one line.

    Example:
        >>> state, _, _ = decide(ElasticState(Limits(1, 2)), Expected(0, "earth"))
        >>> state, actions, reason = decide(state, Joined(0, "unix:a"))
        >>> actions[-1].generation, actions[-1].contacts
        (1, ('unix:a',))
        >>> reason
        'worker 0 on earth joined; generation 1 begins with 1 worker'
    """
    state, actions, reason = _apply(state, event)
    state, more, outcome = settle(state)
    reasons = [reason, outcome]
    if any(isinstance(action, Announce) for action in more):
        # Newcomers may already wait for the new world, and members may be asked to leave it.
        state, notices, change = settle(state)
        more, reasons = more + notices, [*reasons, change]
    return state, (*actions, *more), "; ".join(filter(None, reasons))


def joins_needed(state: ElasticState) -> int:
    """Return a number of workers that certainly must join before the next world can begin; 0: perhaps none.

    What these workers report may have consequences before.
    """
    if state.has_active:
        return max(0, missing_at_least(state)) if state.abandoned else 0
    return max(0, min(len(state.expected), state.limits.max_size - len(state.waiting)))


# --- events ---------------------------------------------------------------------------------------------------------


def _apply(state: ElasticState, event: Event) -> Outcome:
    if isinstance(event, Joined):
        return _joined(state, event)
    if isinstance(event, JoinedTogether):
        return _joined_together(state, event)
    if isinstance(event, Finished):
        return _finished(state, (event,))
    if isinstance(event, FinishedTogether):
        return _finished(state, event.ends)
    if isinstance(event, Suspected):
        return _suspected(state, event)
    if isinstance(event, Continued):
        return _continued(state, event)
    if isinstance(event, Evicted):
        return _evicted(state, event)
    if isinstance(event, Drained):
        return _drained(state, event)
    if isinstance(event, Leaves):
        return _drained(state, Drained((event.worker,), event.why))
    if isinstance(event, Left):
        return _left(state, (event,))
    if isinstance(event, LeftTogether):
        return _left(state, event.goodbyes)
    if isinstance(event, HoldsState):
        holding = changed(state, state_held=True, training=max(state.training, event.training))
        return holding, [], "" if holding == state else f"{state.name(event.worker)} holds the job's state"
    if isinstance(event, Lost):
        return without_join(state, event.worker), [], f"{state.name(event.worker)} closed its connection"
    if isinstance(event, Failed):
        return _failed(state, event)
    if isinstance(event, EndOverdue):
        why = "it has failed, and its process does not end"
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


def _joined(state: ElasticState, event: Joined) -> Outcome:
    worker = event.worker
    why = _why_not(state, worker)
    if why:
        state = remove_from_roll(state, worker) if worker not in state.ranks else state
        return state, [Refuse(worker, why, evicted=not state.ended)], f"{state.name(worker)} is refused: {why}"
    if event.arriving and state.has_active and worker not in state.ranks:
        # It is still expected: its preparation may take some time.
        number = free_device_number(state, worker)
        numbers = {**state.device_numbers, worker: (state.hosts[worker], number)}
        shown = changed(state, device_numbers=numbers)
        return shown, [Show(worker, number)], f"{state.name(worker)} has arrived, and is preparing"
    if worker in state.done:
        # It begins another training. The others that have left may do so too: wait until they join or end.
        state = changed(state, done=frozenset(), exiting=frozenset(), finished=False)
    state = changed(
        state,
        waiting={**without(state.waiting, worker), worker: event},
        expected=state.expected - {worker},
        # A worker that joins is alive, whatever others have reported.
        suspects=without(state.suspects, worker),
        gone=state.gone - {worker},
        lost=tuple(departure for departure in state.lost if departure.worker != worker),
    )
    state, actions = _record_losses(state, event)
    return state, actions, f"{state.name(worker)} joined"


def _joined_together(state: ElasticState, event: JoinedTogether) -> Outcome:
    """Apply the joins in their order. Those that change only the collection of joins are added to it at once, because
    each addition copies it."""
    actions: list[Action] = []
    reasons: dict[int, str] = {}
    adding: dict[int, Joined] = {}
    for each in event.joins:
        if _only_waits(state, each, adding):
            adding[each.worker] = each
            continue
        state, more, reasons[each.worker] = _joined(_with_joins(state, adding), each)
        actions += more
        adding = {}
    state = _with_joins(state, adding)
    joined = {each.worker for each in event.joins} & state.waiting.keys()
    others = [reason for worker, reason in reasons.items() if worker not in joined]
    if joined:
        others.append(f"{names(state, joined)} joined")
    return state, actions, "; ".join(others)


def _only_waits(state: ElasticState, event: Joined, adding: dict[int, Joined]) -> bool:
    """Return whether a worker that joins only has to wait: it is not refused, and it reports and refutes no loss.

    Args:
        state: state of the roster.
        event: the join.
        adding: the joins that came just before, which are not in the state yet.
    """
    worker = event.worker
    return not (
        worker in state.waiting
        or worker in adding
        or worker in state.suspects
        or worker in state.gone
        or worker in state.done
        or worker in state.lost_workers
        or _why_not(state, worker)
        or (event.arriving and state.has_active and worker not in state.ranks)
        or _has_news(state, event, adding)
    )


def _has_news(state: ElasticState, event: Joined, adding: dict[int, Joined]) -> bool:
    """Return whether `_record_losses` would record a report of a worker that joins."""
    for worker, accusation in accusations(state, event):
        if accusation.forming or worker in state.waiting or worker in adding or not state.is_active(worker):
            continue
        if accusation.certain or accusation.left or worker not in state.suspects or worker not in state.lost_workers:
            return True
    return False


def _with_joins(state: ElasticState, joins: dict[int, Joined]) -> ElasticState:
    if not joins:
        return state
    return changed(state, waiting={**state.waiting, **joins}, expected=state.expected.difference(joins))


def _why_not(state: ElasticState, worker: int) -> str:
    """Return why a worker may not join; "" if it may."""
    if state.ended:
        return state.ended
    if worker not in state.hosts:
        return "the job continues without it: it was excluded, or asked to leave"
    if state.finishing and state.generation and worker not in state.ranks:
        return FINISHING
    return ""


def _record_losses(state: ElasticState, event: Joined) -> tuple[ElasticState, list[Action]]:
    """Record the losses that a worker reports, and revoke the world for members that are still forming it.

    These members would not notice a loss by themselves. Reports about workers that have joined are ignored.
    """
    actions: list[Action] = []
    for worker, accusation in accusations(state, event):
        if not state.is_active(worker) or worker in state.waiting:
            continue
        if accusation.forming:
            continue  # The other one may have abandoned the world for another reason, and may be about to join.
        if accusation.left:
            state = _without_leavers(state, (worker,))  # Its own message may arrive later.
            continue
        if accusation.certain:
            actions += _revocation(state, worker, accusation.how, certain=True)
        state = changed(state, lost=departures(state, worker, accusation.how))
        if accusation.certain:
            state = changed(state, suspects=without(state.suspects, worker), gone=state.gone | {worker})
        elif worker not in state.suspects:
            state = changed(state, suspects={**state.suspects, worker: accusation.how})
    return state, actions


def _finished(state: ElasticState, ends: Sequence[Finished]) -> Outcome:
    """Record ends of processes. Those that only confirm that a worker has finished are recorded together, because each
    change of a collection copies it."""
    reason = "; ".join(f"{names(state, workers)} {how}" for how, workers in workers_by_how(ends).items())
    well = {each.worker for each in ends if each.worker in state.done and not each.failed}
    state = _finished_well(state, well)
    actions: list[Action] = []
    for each in ends:
        if each.worker not in well:
            state, more = _finished_otherwise(state, each)
            actions += more
    return state, actions, reason


def _finished_well(state: ElasticState, workers: Collection[int]) -> ElasticState:
    """Record the ends of workers that have left the latest world gracefully."""
    if not workers:
        return state
    return changed(
        remove_from_roll(state, *workers),
        exiting=state.exiting.difference(workers),
        finished=state.finished or not state.exiting.isdisjoint(workers),
        gone=state.gone.union(workers),
        device_numbers=without(state.device_numbers, *workers),
    )


def _finished_otherwise(state: ElasticState, event: Finished) -> tuple[ElasticState, list[Action]]:
    worker = event.worker
    if worker in state.exiting:
        state = changed(state, exiting=state.exiting - {worker}, finished=state.finished or not event.failed)
        if event.failed:
            state = changed(state, done=state.done - {worker})
    elif worker in state.hosts and not (state.generation or event.failed):
        state = changed(state, finished=True)
    actions = _revocation(state, worker, event.how, certain=True)
    lost = departures(state, worker, event.how)
    state = remove_from_roll(state, worker)
    gone = with_gone(state, worker)
    return changed(state, gone=gone, lost=lost, device_numbers=without(state.device_numbers, worker)), actions


def _failed(state: ElasticState, event: Failed) -> Outcome:
    """Treat a worker that reports its failure as gone, however long its process takes to end."""
    worker, how = event.worker, f"raised {event.exception}"
    reason = f"{state.name(worker)} reports that it failed: {event.exception}"
    if worker not in state.hosts:
        return state, [], reason
    actions = _revocation(state, worker, how, certain=True)
    lost = departures(state, worker, how)
    state, more = dismiss(state, worker, f"it has failed: {event.exception}")
    return changed(state, gone=with_gone(state, worker), lost=lost), actions + more, reason


def _suspected(state: ElasticState, event: Suspected) -> Outcome:
    actions: list[Action] = []
    reason = f"silent: {names(state, event.workers)}: {event.how}"
    for worker in event.workers:
        stopped = without(state.stopped, worker)  # With its host, the launcher also loses the sign that it runs again.
        if event.stopped and worker in state.hosts:
            stopped = {**stopped, worker: event.how}
        state = changed(state, stopped=stopped)
        if state.is_active(worker):
            actions += _revocation(state, worker, event.how, certain=False)
            lost = departures(state, worker, event.how)
            # Even if it has joined: it could not take part in the world that is announced to it.
            state = changed(state, suspects={**state.suspects, worker: event.how}, lost=lost)
        elif worker in state.waiting:
            state, more = exclude(state, worker, event.how)
            actions += more
    return state, actions, reason


def _continued(state: ElasticState, event: Continued) -> Outcome:
    if event.worker not in state.stopped:
        return state, [], ""
    return continued(state, event.worker), [], f"{state.name(event.worker)} has continued"


def _drained(state: ElasticState, event: Drained) -> Outcome:
    """Let members leave at the end of their step. Newcomers are refused at once."""
    reason = f"asked to leave: {names(state, event.workers)}: {event.why}"
    members = set(event.workers).intersection(state.active())
    actions: list[Action] = []
    for worker in event.workers:
        if worker in state.hosts and worker not in state.ranks:
            state, more = dismiss(state, worker, f"it was asked to leave: {event.why}")
            actions += more
    return changed(state, leaving=state.leaving | members), actions, reason


def _evicted(state: ElasticState, event: Evicted) -> Outcome:
    worker = event.worker
    if worker not in state.hosts:
        return state, [], f"{state.name(worker)} is excluded already, or has ended"
    reason = f"{state.name(worker)} is excluded: {event.why}"
    actions = _revocation(state, worker, event.why, certain=False)
    state, more = exclude(state, worker, event.why)
    return state, actions + more, reason


def _left(state: ElasticState, goodbyes: Sequence[Left]) -> Outcome:
    leavers = {each.worker for each in goodbyes if each.generation == state.generation and state.is_active(each.worker)}
    reasons = [f"{names(state, leavers)} left generation {state.generation}"] if leavers else []
    for each in goodbyes:
        if each.worker not in leavers:
            reasons.append(f"{state.name(each.worker)} left generation {each.generation}, which is over for it")
    return _without_leavers(state, leavers), [], "; ".join(reasons)


def _without_leavers(state: ElasticState, workers: Collection[int]) -> ElasticState:
    return changed(state, done=state.done.union(workers), exiting=state.exiting.union(workers))


def _hold_over(state: ElasticState, event: HoldOver) -> Outcome:
    if event.kind != state.hold.kind:
        return state, [], "nothing is waited for any more"
    if event.kind == START:
        absent, here = names(state, state.expected), len(state.waiting)
        reason = too_late(absent, len(state.expected), here, state.hold.seconds)
        if here >= state.limits.min_size:
            return changed(state, expected=frozenset()), [], reason
        return *end(state, reason), reason
    if event.kind == STOPPED:
        doubtful = state.doubtful()
        how = state.stopped[doubtful[0]]
        return _suspected(state, Suspected(tuple(doubtful), how, stopped=True))
    waited, what = f"waited {state.hold.seconds:g} s", state.hold.reason
    reason = f"{waited} {what.removeprefix('waits ')}" if what.startswith("waits for ") else f"{waited}: {what}"
    if event.kind == MEMBERS:
        how = f"did not join within {state.hold.seconds:g} s"
        for worker in missing(state):
            lost = departures(state, worker, how)
            state = changed(state, suspects={**state.suspects, worker: how}, lost=lost)
        return state, [], reason
    return *end(state, reason), reason


def _revocation(state: ElasticState, worker: int, how: str, *, certain: bool) -> list[Action]:
    if not state.is_active(worker) or worker in state.lost_workers:
        return []
    others = tuple(each for each in state.active() if each != worker and each not in state.waiting)
    return [Revoke(others, state.generation, state.ranks[worker], how, certain)] if others else []

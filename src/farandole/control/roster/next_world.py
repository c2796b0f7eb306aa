"""Derives the next world of an elastic job, and the notices to workers, from the roster's state.

The rules and their reasons are in `farandole.control.roster.elastic`.
"""

from __future__ import annotations

from farandole.control.roster.arrivals import MANY, hold_for_arrivals
from farandole.control.roster.events import (
    HAS_FINISHED,
    HAS_LEFT,
    Action,
    Announce,
    Departure,
    End,
    Hold,
    Joined,
    Notify,
    Refuse,
    find_places,
)
from farandole.control.roster.exclusion import workers_to_leave_out
from farandole.control.roster.membership import (
    ElasticState,
    Outcome,
    accusations,
    changed,
    departures,
    dismiss,
    exclude,
    missing,
    missing_at_least,
    names,
    remove_from_roll,
)

MEMBERS = "members"
MAJORITY = "majority"
STOPPED = "stopped"
MINIMUM = "minimum"
FENCE = "fence"

# Seconds in which the launcher reports that a stopped worker has continued: agents check twice a second.
CONTINUE_SECONDS = 2.0

# Reasons why a worker is not in the next world. The others are notified that it left for this reason.
ASKED = "it was asked to leave"
SMALLER = "the job was made smaller"
FINISHING = "the job is about to end: workers have finished"


def settle(state: ElasticState) -> Outcome:
    """Return the state and actions that follow from a state, without any event."""
    if state.ended:
        return state, [], ""
    least = missing_at_least(state)
    if least > MANY and state.abandoned:
        # Nothing else follows, and this happens for each of many joins.
        return _wait_for_members(state, f"at least {least} of {len(state.members)} workers")
    doubtful = state.doubtful()
    if doubtful:
        reason = f"waits for a sign that the stopped workers run again: {names(state, doubtful)}"
        return _wait(state, Hold(STOPPED, reason, CONTINUE_SECONDS))
    if not state.has_active:
        return _begin(state)
    return _replace_world(state) if state.abandoned else _notify_members(state)


def _begin(state: ElasticState) -> Outcome:
    """Form the first world, which consists of newcomers."""
    if state.finishing and state.generation:
        return *_refuse_newcomers(state), ""
    unfenced = state.barred - state.gone
    if unfenced:
        return _wait(state, Hold(FENCE, f"waits for the end of {names(state, unfenced)}", state.limits.timeout))
    size = len(state.waiting)
    if state.expected and size < state.limits.max_size:
        absent = state.expected
        hold = hold_for_arrivals(lambda: names(state, absent), len(absent), size, _start_seconds(state))
        return _wait(state, hold)
    if size < state.limits.min_size and state.finishing:
        return _end_incomplete(state, size)
    if size < state.limits.min_size:
        return _wait_for_minimum(state, size)
    return _announce(state, sorted(state.waiting)[: state.limits.max_size])


def _end_incomplete(state: ElasticState, here: int) -> Outcome:
    """End the job if too few workers wait, because the others have finished before there was any world."""
    if not here:
        return _wait(state, Hold(""))
    least = state.limits.min_size
    why = f"only {here} of at least {_count(least)} called init(); the others have ended with exit code 0"
    return *end(state, why), why


def _start_seconds(state: ElasticState) -> float:
    at_once = state.generation == 0 or len(state.waiting) >= state.limits.min_size
    return state.limits.start_timeout if at_once else state.limits.timeout


def _notify_members(state: ElasticState) -> Outcome:
    """Notify the members of an intact world of how many newcomers wait for it, and how many members are to leave."""
    if not (state.waiting or state.leaving) and len(state.members) <= state.limits.max_size and not any(state.notified):
        return _wait(state, Hold(""))  # Quick, because this happens for each of many goodbyes.
    actions: list[Action] = []
    if state.finishing:
        state, actions = _refuse_newcomers(state)
    active = state.active()
    removed = len(_leavers(state, active))
    staying = len(active) - removed
    added = max(0, min(len(state.newcomers()), _most(state, active) - staying))
    state, more, _ = _wait(state, Hold(""))
    actions += more
    if (added, removed) == state.notified:
        return state, actions, ""
    reason = _change_in_words(added, removed)
    notice = Notify(tuple(active), state.generation, added, removed, reason)
    return changed(state, notified=(added, removed)), [*actions, notice], reason


def _replace_world(state: ElasticState) -> Outcome:
    """Form the next world as soon as all members of the present one, which was abandoned, have joined."""
    late = missing(state)
    if late:
        return _wait_for_members(state, names(state, late))
    joined = state.waiting
    here = [worker for worker in state.active() if worker not in state.suspects]
    if not (here or state.newcomers()) and state.stopped.keys() >= set(state.active()):
        return _wait(state, Hold(""))  # No other worker waits for them, and each of them can continue.
    doubt = _doubt(state, here)
    if doubt:
        return _wait(state, Hold(MAJORITY, doubt, state.limits.majority_timeout))
    actions: list[Action] = []
    for worker, how in state.suspects.items():
        if state.is_active(worker):
            state, more = exclude(state, worker, how)
            actions += more
    staying = {each for each in here if joined[each].trained and each not in state.leaving}
    for worker in workers_to_leave_out(here, staying, _cut_links(state, here)):
        here.remove(worker)
        state, more = exclude(state, worker, "cannot connect to others")
        actions += more
    state, more, reason = _next(state, here)
    return state, actions + more, reason


def _doubt(state: ElasticState, here: list[int]) -> str:
    """Return why the workers that have joined may not continue without the silent ones; "" if they may."""
    joined = state.waiting
    silent = [worker for worker in state.suspects if state.is_active(worker)]
    # A worker that has joined does nothing more in the old world, even if it is silent now.
    at_large = [worker for worker in silent if worker not in joined]
    if len(here) < len(at_large) or (silent and not here):
        return (
            f"waits for {names(state, silent)}: only {len(here)} of {len(here) + len(silent)} workers respond, "
            "and the others may be training without them"
        )
    holders = state.holders.intersection(silent)
    keeping = {worker for worker in here if joined[worker].trained}
    if all(joined[worker].open for worker in here) and not (state.newcomers() or state.expected or state.promised):
        # Between two steps, workers that are to leave may do so if no worker needs the state from them.
        keeping -= state.leaving
    if holders and not keeping:
        return f"waits for {names(state, holders)}: no other worker has the job's state"
    return ""


def _cut_links(state: ElasticState, here: list[int]) -> set[frozenset[int]]:
    """Return the pairs of these workers that could not connect to each other.

    When a world cannot be formed because one worker is missing, its workers give up one after the other, and a worker
    whose peer gives up may conclude that the network between the two is cut. So one report is not enough. A pair counts
    as cut if both workers report it; or if one of them does, the other could not form that world either, and no member
    is lost, which would explain the failure.
    """
    joined = state.waiting
    failed = {
        worker
        for worker in here
        for each in joined[worker].accused
        if each.forming and joined[worker].generation == state.generation
    }
    said = {
        (worker, other)
        for worker in failed
        for other, accusation in accusations(state, joined[worker])
        if accusation.forming
    }
    complete = len(here) == len(state.members)
    return {
        frozenset((worker, other))
        for worker, other in said
        if (complete and other in failed) or (other, worker) in said
    }


def _next(state: ElasticState, here: list[int]) -> Outcome:
    """Form the next world, or wait for more workers, once all remaining members of the present one have joined."""
    joined = state.waiting
    # No worker enters or leaves in the middle of a step, but right after it.
    between_steps = all(joined[worker].open for worker in here)
    # A member that does not hold the state yet is treated as a newcomer, if others hold it.
    holders = [worker for worker in here if joined[worker].trained] or here
    actions: list[Action] = []
    if state.finishing:
        state, actions = _refuse_newcomers(state)
    leavers = {worker: ASKED for worker in state.leaving.intersection(here).difference(holders)}
    if between_steps or not _enough(state, [*here, *state.newcomers()]):
        leavers |= _leavers(state, holders)
    for worker, why in leavers.items():
        lost = departures(state, worker, f"left because {why}")
        state, more = dismiss(state, worker, why)
        state, actions = changed(state, lost=lost), actions + more
    joined = state.waiting
    here = [worker for worker in here if worker in joined]
    holders = [worker for worker in holders if worker in joined]
    everyone = list(dict.fromkeys((*holders, *here, *state.newcomers())))
    if not _enough(state, everyone):
        state, more, reason = _wait_for_minimum(state, len(everyone))
    else:
        state, more, reason = _announce(state, everyone[: _most(state, holders)] if between_steps else holders)
    return state, actions + more, reason


def _enough(state: ElasticState, everyone: list[int]) -> bool:
    return bool(everyone) and (state.finishing or len(everyone) >= state.limits.min_size)


def _leavers(state: ElasticState, holders: list[int]) -> dict[int, str]:
    """Return the holders of the job's state that are not in the next world, each with the reason.

    When all holders are to leave while newcomers wait or will be started soon, the first one stays until the newcomers
    have the state.
    """
    asked = [worker for worker in holders if worker in state.leaving]
    others = state.waiting.keys() - set(holders)
    if len(asked) == len(holders) and (others or state.expected or state.promised) and not state.finishing:
        del asked[:1]
    leaving = set(asked)
    staying = [worker for worker in holders if worker not in leaving]
    surplus = staying[state.limits.max_size :]
    return {worker: ASKED for worker in asked} | {worker: SMALLER for worker in surplus}


def _most(state: ElasticState, holders: list[int]) -> int:
    """Return the largest size of the next world, including a worker that stays only to hand over the state."""
    handing_over = not state.leaving.isdisjoint(holders) and len(_leavers(state, holders)) < len(
        state.leaving.intersection(holders)
    )
    return state.limits.max_size + handing_over


def _announce(state: ElasticState, chosen: list[int]) -> Outcome:
    resets, limit = state.generation, state.limits.reset_limit
    if limit is not None and resets > limit:
        # Horovod's words: its users look for them.
        why = f"Horovod was shutdown because number of resets during elastic job exceeded limit: {limit}"
        return *end(state, why), why
    joined = state.waiting
    joins = [joined[worker] for worker in chosen]
    generation = state.generation + 1
    places = find_places([_host_of(state, each) for each in joins])
    told = {worker: (place.hostname, place.local_rank) for worker, place in zip(chosen, places, strict=True)}
    action = Announce(
        generation,
        tuple(each.contact for each in joins),
        places,
        tuple(chosen),
        tuple(state.ranks.get(each.worker, -1) if each.trained else -1 for each in joins),
        state.lost,
        _finished(state),
    )
    state, actions, _ = _wait(state, Hold(""))
    for worker in set(state.members).difference(chosen, joined):
        state = remove_from_roll(state, worker)
    members = frozenset(chosen)
    state = changed(
        state,
        generation=generation,
        members=tuple(chosen),
        waiting={worker: each for worker, each in state.waiting.items() if worker not in members},
        gone=frozenset(),
        done=frozenset(),
        suspects={},
        barred=frozenset(),
        holders=frozenset(each.worker for each in joins if each.trained),
        lost=(),
        notified=(0, 0),
        leaving=state.leaving.intersection(chosen),
        device_numbers={**told, **state.device_numbers},
    )
    return state, [*actions, action], f"generation {generation} begins with {_count(len(chosen))}"


def _finished(state: ElasticState) -> tuple[Departure, ...]:
    return tuple(
        Departure(rank, worker, HAS_LEFT if worker in state.exiting else HAS_FINISHED)
        for rank, worker in enumerate(state.members)
        if worker in state.done
    )


def _host_of(state: ElasticState, joined: Joined) -> tuple[str, str]:
    """Return the identifier and the name of a worker's host: the launcher's name for it, if there is one."""
    name = state.hosts.get(joined.worker)
    return (joined.host, joined.hostname) if name is None else (name, name)


# --- waiting, and ending --------------------------------------------------------------------------------------------


def _wait_for_minimum(state: ElasticState, here: int) -> Outcome:
    # Horovod's words: its users look for them.
    words = (
        f"waits for workers: {here} of at least {state.limits.min_size} are here. Please check that you have enough "
        f"resources to run at least {state.limits.min_size} Horovod processes."
    )
    return _wait(state, Hold(MINIMUM, words, state.limits.timeout))


def _wait_for_members(state: ElasticState, late: str) -> Outcome:
    return _wait(state, Hold(MEMBERS, f"waits for {late}", state.limits.timeout))


def _wait(state: ElasticState, hold: Hold) -> Outcome:
    if hold == state.hold:
        return state, [], ""
    return changed(state, hold=hold), [hold], hold.reason


def end(state: ElasticState, why: str) -> tuple[ElasticState, list[Action]]:
    """End the job, and refuse all workers that wait."""
    refusals = [Refuse(worker, why) for worker in state.waiting]
    return changed(state, waiting={}, ended=why, hold=Hold("")), [*refusals, Hold(""), End(why)]


def _refuse_newcomers(state: ElasticState) -> tuple[ElasticState, list[Action]]:
    actions: list[Action] = []
    for worker in state.newcomers():
        state, more = dismiss(state, worker, FINISHING)
        actions += more
    return state, actions


def _count(number: int) -> str:
    return f"{number} worker" if number == 1 else f"{number} workers"


def _change_in_words(added: int, removed: int) -> str:
    parts = []
    if added:
        parts.append(f"{_count(added)} {'waits' if added == 1 else 'wait'} to join")
    if removed:
        parts.append(f"{_count(removed)} {'is' if removed == 1 else 'are'} to leave")
    return " and ".join(parts) or "no workers wait to join or are to leave any more"

"""Rules for filling slots, removing surplus workers, and waiting when there are too few slots.

Slots are filled in the order of the hosts, longest known first, up to the job's maximum number of workers and its
spares; before the first world, up to the number with which the job starts.
"""

from __future__ import annotations

import math
from dataclasses import replace

from farandole.base.display.wording import count
from farandole.control.launcher.slots.job_events import (
    DrainWorkers,
    EndJob,
    Say,
    SlotAction,
    StartWorker,
)
from farandole.control.launcher.slots.job_state import (
    JobState,
    Step,
    at_work,
    drain,
    is_free,
    living,
    living_workers,
    site_of,
    with_deadline,
    with_site,
    with_slots,
)
from farandole.control.launcher.slots.phrases import named, others
from farandole.control.roster.events import Leaves


def world_began(state: JobState, before: tuple[int, ...], now: float) -> Step:
    """Record a new world, and the workers that are no longer in it.

    Args:
        state: the state, which has the new world.
        before: the workers of the previous world.
        now: the time on the clock of the state.
    """
    members = frozenset(state.world)
    here = living(state)
    joined_at = {
        worker: state.joined_at.get(worker, now) for worker in here if worker in members | state.joined_at.keys()
    }
    # A worker that was in a world and is not in this one should be about to end.
    out = joined_at.keys() - members
    state = with_deadline(with_slots(state, {worker: {"left": True} for worker in out}), out, now)
    ranks = {worker: rank for worker, rank in state.ranks.items() if worker in here}
    ranks |= {worker: rank for rank, worker in enumerate(state.world) if worker in here}
    if not before:
        state = replace(state, firsts=members, firsts_known=True)
    all_were_asked = members.isdisjoint(before) and state.asked.issuperset(before)
    if not all_were_asked:
        state = replace(state, asked=state.asked & members)
    return replace(state, ranks=ranks, joined_at=joined_at), [], f"a world of {len(members)}"


def worker_leaves(state: JobState, event: Leaves, now: float) -> Step:
    """Record that a worker leaves although its host stays: another worker gets its slot."""
    site, slot = living(state).get(event.worker, (None, None))
    if site is None or slot is None or slot.draining or slot.left:
        return state, [], f"worker {event.worker} is already leaving: {event.why}"
    who = f"worker {event.worker} on {site.label}"
    within = f"it leaves at the end of a step, within {state.policy.grace:g} s"
    said = f"{who} was asked to leave: {event.why}; {within}; {others(state, [event.worker], 'stays', 'stay')}"
    return drain(state, [event.worker], now), [Say(f"farandole: {said}")], said


def end_if_over(state: JobState, now: float) -> tuple[JobState, list[SlotAction]]:
    """End the job if no worker is left that has work to do, and none can be started."""
    if len(state.early) >= state.limits.min_size:
        state = replace(state, finished=True)
    some = any(True for _ in living_workers(state))
    # A fact that the roster knows for certain may have been lost here with the previous launcher.
    if not (state.finished or (state.finishing and not some)):
        barred = all(math.isinf(site.barred_until) for site in state.sites)
        if some or not state.sites or not barred:
            return state, []
        hint = "--blacklist-cooldown-range gives hosts another chance"
        return state, [EndJob("all hosts are blacklisted", hint)]
    # Spares wait for a world that will never begin.
    members = state.elastic_roster.ranks
    left = some and (not state.generation or any(worker in members for worker in living_workers(state)))
    return state, [] if left else [EndJob("")]


def shrink(state: JobState, now: float) -> tuple[JobState, list[SlotAction]]:
    """Let the newest workers leave when there are more than allowed."""
    most = state.limits.max_size
    if sum(len(site.slots) for site in state.sites) <= most:
        return state, []
    staying = {worker for worker, (_, slot) in at_work(state).items() if not (slot.draining or slot.left)}
    members = staying.intersection(state.world)
    surplus = set(sorted(members)[most:])
    others = sorted(staying - surplus, key=lambda worker: (worker not in members, worker))
    surplus |= set(others[state.most :])
    if not surplus:
        return state, []
    leaving = tuple(sorted(surplus))
    state = drain(state, leaving, now)
    why = f"the job may have no more than {count(most, 'worker')}"
    said = f"{why}; {named(leaving)} {'leaves' if len(leaving) == 1 else 'leave'} at the end of a step"
    return state, [Say(f"farandole: {said}"), DrainWorkers(leaving, why)]


def fill(state: JobState, now: float) -> tuple[JobState, list[SlotAction]]:
    """Start workers in free slots."""
    if state.closing or (state.next_worker == 0 and _more_are_coming(state)):
        return state, []
    free = [
        (site.label, slot.index)
        for site in state.sites
        if site.phase == "ready" and not site.closed and site.barred_until <= now
        for slot in site.slots
        if is_free(state, site, slot) and slot.not_before <= now
    ]
    here = at_work(state).values()
    room = (state.most if state.generation else state.most_at_first) - len(here) - len(state.early)
    if here and all(site.closed or slot.draining or slot.left for site, slot in here):
        room = max(room, 1)  # No worker stays: the last one to leave hands the state over to this one.
    actions: list[SlotAction] = []
    for label, index in free[: max(room, 0)]:
        worker = state.next_worker
        actions.append(StartWorker(worker, label, index))
        site = site_of(state, label)
        assert site is not None
        slots = tuple(replace(slot, worker=worker) if slot.index == index else slot for slot in site.slots)
        state = replace(with_site(state, label, slots=slots), next_worker=worker + 1)
        if not state.firsts_known:
            state = replace(state, firsts=state.firsts | {worker})
    return state, actions


def will_start(state: JobState, now: float) -> bool:
    """Return whether there is a free slot for a worker that will be started soon, or once others have left.

    Slots on hosts that are being reached, or will be, also count, and slots that will soon be free. The slot of the
    first member does not count while that worker may stay until others have the state.
    """
    if state.closing or state.end:
        return False
    here = living(state)
    first = next((worker for worker in state.world if worker in here), None)
    return any(
        is_free(state, site, slot) or (slot.index < site.size and (slot.draining or slot.left) and slot.worker != first)
        for site in state.sites
        if site.phase in ("new", "reaching", "ready") and not site.closed and site.barred_until <= now
        for slot in site.slots
    )


def _more_are_coming(state: JobState) -> bool:
    """Return whether the first workers should wait for hosts that are being reached, to start in one world.

    They wait for hosts that precede a ready one: users rely on rank 0 being on the first host.
    """
    ready = [index for index, site in enumerate(state.sites) if site.phase == "ready" and not site.closed]
    reached = [index for index, site in enumerate(state.sites) if site.phase == "reaching" and not site.tries]
    slots = sum(state.sites[index].size for index in ready)
    return bool(reached) and (slots < state.policy.first_size or min(reached) < max(ready, default=0))


def count_time(state: JobState, now: float) -> tuple[JobState, list[SlotAction]]:
    """Print that there are too few slots, and end the job if this lasts too long."""
    least = state.limits.min_size
    if state.closing:
        return state, []
    # Slots in backoff will have workers again; those of a barred host only keep the workers that they have.
    usable = len(state.early) + sum(
        slot.worker is not None or (is_free(state, site, slot) and site.barred_until <= now)
        for site in state.sites
        if site.phase == "ready" and not site.closed
        for slot in site.slots
        if slot.index < site.size
    )
    if usable >= least:
        return replace(state, short_since=None), []
    if state.short_since is None and any(
        site.size and site.phase in ("new", "reaching", "lost") and not site.tries for site in state.sites
    ):
        return state, []
    if state.short_since is None:
        words = f"{usable} of at least {count(least, 'worker')} have a slot; the job waits for more slots"
        limit = "" if math.isinf(state.limits.timeout) else f", for {state.limits.timeout:g} s at most"
        said = Say(f"farandole: {words}{limit}")
        return replace(state, short_since=now), [said]
    if now < state.short_since + state.limits.timeout:
        return state, []
    # Horovod's words: its users look for them.
    why = (
        f"timed out: after {state.limits.timeout:g} s only {usable} of at least {least} workers have a place. Please "
        f"check that you have enough resources to run at least {least} Horovod processes."
    )
    return state, [EndJob(why, "add hosts or slots, or give it more time by a longer elastic timeout")]

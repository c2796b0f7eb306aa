"""The consequences of a worker's end for its slot, for its host, and for the job.

A slot whose worker has failed gets another worker at once; if that one soon fails as well, the next ones start after
longer and longer waits (`backoff`). A host on which many workers fail within a minute is not used for a while
(*quarantine*). Users can choose Horovod's behaviour instead: a host with one failed worker is not used any more, for
good or for a while (*blacklist*).

A worker that repeatedly fails in the same way is not restarted for ever: the job ends with that failure, unless the
worker never joined a world in which others train. If workers fail in any way, and too few are left, it has the elastic
timeout to get better (`failure_run`). The job also ends if all workers that were started first fail before
a step was counted or a minute has passed, and no other worker is in a world; and at once if no worker is left that
holds the state of the training. Once a worker has finished, no more workers are started, and newcomers that are refused
do not count as failed. A worker that was asked to leave has neither failed nor finished.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from farandole.base.display.wording import count
from farandole.control.launcher.slots.backoff import waiting_time
from farandole.control.launcher.slots.failure_run import count_failure, forget_if_healthy, is_healthy
from farandole.control.launcher.slots.job_events import (
    FAILED,
    FINISHED,
    STATE_LOST,
    SUCCEEDED,
    DrainWorkers,
    EndJob,
    Say,
    SlotAction,
    WorkerEnded,
)
from farandole.control.launcher.slots.job_state import (
    JobState,
    Repeat,
    Site,
    Slot,
    Step,
    drain,
    living,
    places_of,
    site_of,
    with_site,
    with_slots,
)
from farandole.control.launcher.slots.phrases import others, who_leaves
from farandole.control.roster.membership import without

# This number of failures on one host within that time is the fault of the host.
FLAPS = 5
FLAP_SECONDS = 60.0
FIRST_QUARANTINE = 30.0
LONGEST_QUARANTINE = 600.0
# The same failure of the same rank, this many times in a row, will not go away.
SAME_FAILURES = 3


def workers_ended(state: JobState, ends: Sequence[WorkerEnded], now: float) -> Step:
    """Record the ends of workers' processes, which became known at the same moment."""
    before, places = state, places_of(state, {each.worker for each in ends})
    state = _without(forget_if_healthy(state, now), places, now)
    actions: list[SlotAction] = []
    reasons = []
    for event in ends:
        if event.worker not in places:
            reasons.append(f"worker {event.worker}, which is not expected, has ended")
            continue
        state, more, reason = _worker_ended(state, event, before, places[event.worker], now)
        actions += more
        reasons.append(reason)
        if any(isinstance(action, EndJob) for action in more):
            break
    return state, actions, "; ".join(reasons)


def _worker_ended(state: JobState, event: WorkerEnded, before: JobState, place: tuple[Site, Slot], now: float) -> Step:
    """Return what follows from the end of a worker.

    Args:
        state: the state without the worker.
        event: the end.
        before: the state with the worker.
        place: its place in that state.
        now: the time on the clock of the state.
    """
    site, slot = place
    healthy = is_healthy(before, event.worker, now)
    member = event.worker in before.elastic_roster.ranks or not before.generation
    rank = before.ranks.get(event.worker)
    name = f"worker {event.worker} on {site.label}"
    if event.how == FINISHED:
        return _finished(state, name, site.label, slot.index)
    if slot.draining or (slot.left and event.how == SUCCEEDED):
        return state, [], f"{name} has left"
    if event.how == SUCCEEDED and member:
        return _finished(state, name, site.label, slot.index)
    if event.how == SUCCEEDED and state.closing:
        return state, [], f"{name} came too late and was refused"
    if event.how == STATE_LOST and not state.finished:
        return state, [_end_without_state(state)], f"{name} {event.how}: no worker can continue"
    state, actions = _slot_failed(state, event.worker, site.label, slot.index, now, healthy)
    if event.how == FAILED:
        state, more = _failed_by_itself(state, event, rank, f"{site.label}:{slot.index}", healthy)
        if more:
            return state, more, f"{name} {event.how}"  # The job ends, so the fate of the slot does not matter.
    if not healthy:
        state, more = count_failure(state, event, site, now)
        actions = more if any(isinstance(action, EndJob) for action in more) else actions + more
    return state, actions, f"{name} {event.how}"


def _finished(state: JobState, name: str, label: str, index: int) -> Step:
    if not state.generation:
        state = replace(state, early=state.early | {(label, index)})
        return state, [], f"{name} has finished before there is a world: {len(state.early)} of {_least(state)}"
    return replace(state, finished=True), [], f"{name} has finished: no more workers are started"


def _least(state: JobState) -> str:
    return f"at least {count(state.limits.min_size, 'worker')}"


def _end_without_state(state: JobState) -> EndJob:
    how = "were asked to leave before it was finished" if state.asked else "are lost"
    why = f"all workers that held the state of the training {how}, and no other worker has it"
    hint = (
        "start it again; a loop over hvd.elastic.steps continues from its last checkpoint with --checkpoint-dir DIR "
        "--resume auto, other scripts from the state that they have saved themselves"
    )
    return EndJob(why, hint)


def _without(state: JobState, workers: Collection[int], now: float) -> JobState:
    empty: dict[str, object] = {"worker": None, "draining": False, "left": False}
    return replace(
        with_slots(state, dict.fromkeys(workers, empty)),
        joined_at=without(state.joined_at, *workers),
        ranks=without(state.ranks, *workers),
        progressed=state.progressed or any(is_healthy(state, worker, now) for worker in workers),
    )


def _slot_failed(
    state: JobState, worker: int, label: str, index: int, now: float, healthy: bool
) -> tuple[JobState, list[SlotAction]]:
    site = site_of(state, label)
    assert site is not None
    slot = next(each for each in site.slots if each.index == index)
    failures = 1 if healthy else slot.failures + 1
    wait = waiting_time(failures - 1)
    slots = tuple(
        replace(each, failures=failures, not_before=now + wait) if each.index == index else each for each in site.slots
    )
    recent = (*(at for at in site.failed_at if at > now - FLAP_SECONDS), now)
    state = with_site(state, label, slots=slots, failed_at=recent)
    if state.finished or site.closed:
        return state, []
    if state.policy.blacklist:
        return _blacklist(state, worker, label, now)
    if len(recent) >= FLAPS and site.barred_until <= now:
        return _quarantine(state, label, now)
    words = f"another one starts on {label} in {wait:g} s: {failures} have failed there in a row"
    tells = wait > 0 and not state.closing
    return state, [Say(f"farandole: to replace worker {worker}, {words}")] if tells else []


def _quarantine(state: JobState, label: str, now: float) -> tuple[JobState, list[SlotAction]]:
    site = site_of(state, label)
    assert site is not None
    wait = min(FIRST_QUARANTINE * 2**site.quarantines, LONGEST_QUARANTINE)
    state = with_site(state, label, quarantines=site.quarantines + 1, barred_until=now + wait, failed_at=())
    words = f"{FLAPS} workers failed on it within {FLAP_SECONDS:g} s; no workers are started there for {wait:g} s"
    return state, [Say(f"warning: host {label} is in quarantine: {words}")]


def _blacklist(state: JobState, worker: int, label: str, now: float) -> tuple[JobState, list[SlotAction]]:
    """Blacklist the host of a failed worker entirely, as Horovod does."""
    site = site_of(state, label)
    assert site is not None
    if site.barred_until > now:
        return state, []
    wait = math.inf
    if state.policy.cooldown is not None:
        least, most = state.policy.cooldown
        wait = min(least * 2**site.quarantines, most)
    here = tuple(slot.worker for slot in site.slots if slot.worker is not None and not slot.draining)
    state = drain(state, here, now)
    state = with_site(state, label, quarantines=site.quarantines + 1, barred_until=now + wait)
    how_long = "" if math.isinf(wait) else f" for {wait:g} s"
    said = f"host {label} is blacklisted{how_long}: worker {worker} failed on it"
    actions: list[SlotAction] = [Say(f"warning: {said}; {others(state, (), 'continues', 'continue')}")]
    if here:
        actions = [
            Say(f"warning: {said}; {who_leaves(state, here)}"),
            DrainWorkers(here, f"host {label} is blacklisted"),
        ]
    return state, actions


def _failed_by_itself(
    state: JobState, event: WorkerEnded, rank: int | None, slot: str, healthy: bool
) -> tuple[JobState, list[SlotAction]]:
    who = slot if rank is None else f"rank {rank}"
    before = state.repeats.get(who)
    times = before.times + 1 if before is not None and before.what == event.what and not healthy else 1
    firsts = state.firsts - {event.worker}
    in_world = not living(state).keys().isdisjoint(state.world)
    early = bool(state.firsts) and not firsts and not (state.progressed or in_world)
    state = replace(
        state,
        repeats={**state.repeats, who: Repeat(event.what, times)},
        firsts=firsts,
        firsts_known=True,
    )
    if state.finished:
        return state, []
    if early:
        return state, [EndJob("all workers that were started first have failed, and no other was training")]
    # A worker that never joined a living world does not end it: its slot is retried less and less often.
    if times >= SAME_FAILURES and (rank is not None or not in_world):
        name = f"rank {rank}" if rank is not None else "a worker of the same slot"
        why = f"{name} failed {times} times in a row in the same way ({event.what})"
        return state, [EndJob(why, worker=event.worker)]
    return state, []

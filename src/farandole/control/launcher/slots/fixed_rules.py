"""The rules of a job of fixed size: all workers start together, and the first failure ends the job.

A worker may fail only because it has lost another one, or because the other one has left. Then the other one gets
`BLAMED_SECONDS` to end by itself and report its reason before the job is ended.

The workers of a lost agent are lost with it: the kernel ends them when the agent dies, and the agent ends them when it
has lost the launcher. Its host counts as the first failure, and the job is ended on all other hosts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from farandole.control.launcher.slots.job_events import (
    FINISHED,
    SUCCEEDED,
    EndedTogether,
    EndJob,
    Event,
    HostLost,
    Say,
    Tick,
    WorkerEnded,
)
from farandole.control.launcher.slots.job_state import Blame, JobState, Step, living_workers, places_of, with_slots

BLAMED_SECONDS = 1.0


def apply(state: JobState, event: Event, now: float) -> Step:
    """Return the next state, the actions, and the reason in one line ("" where the roster gives the reason)."""
    if isinstance(event, WorkerEnded):
        return _workers_ended(state, (event,), now)
    if isinstance(event, EndedTogether):
        return _workers_ended(state, event.ends, now)
    if isinstance(event, HostLost):
        return _host_lost(state, event)
    if isinstance(event, Tick):
        return _end_for(state, [blame for blame in state.blames if blame.until <= now])
    return state, [], ""


def _workers_ended(state: JobState, ends: Sequence[WorkerEnded], now: float) -> Step:
    ended = {each.worker for each in ends}
    state = _without(state, ended)
    if state.end is None:
        failed = [each for each in ends if each.how not in (SUCCEEDED, FINISHED)]
        suspects = places_of(state, {each.blames for each in failed if each.blames is not None})
        blames = (
            Blame(each.worker, each.blames if each.blames in suspects else each.worker, now + BLAMED_SECONDS)
            for each in failed
        )
        state = replace(state, blames=(*state.blames, *blames))
    over = [blame for blame in state.blames if blame.blamed in ended]
    if any(True for _ in living_workers(state)):
        return _end_for(state, over)
    # Processes that workers have left behind must also end.
    state, actions, reason = _end_for(state, list(state.blames))
    return state, [*actions, EndJob("")], reason


def _end_for(state: JobState, blames: list[Blame]) -> Step:
    """End the job because of workers that need not wait any more for the reasons of the workers that they blame."""
    left = tuple(blame for blame in state.blames if blame not in blames)
    return replace(state, blames=left), [EndJob("", because_of=blame.worker) for blame in blames], ""


def _host_lost(state: JobState, event: HostLost) -> Step:
    if event.local and state.end is not None:
        return state, [EndJob("", grace=state.end.grace, stop_code=1)], ""
    if event.local:
        said = Say(f"error: {event.why}; killing the workers")
        return state, [said, EndJob("", grace=0.0, stop_code=1)], said.text
    state = _without(state, event.workers)
    if state.end is not None:
        return state, [], ""
    what = f"host {event.label} is lost: {event.why}"
    return state, [Say(f"warning: {what}; ending the workers on the other hosts"), EndJob("")], what


def _without(state: JobState, workers: Iterable[int]) -> JobState:
    return with_slots(state, {worker: {"worker": None} for worker in workers})

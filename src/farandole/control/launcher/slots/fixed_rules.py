"""The rules of a job of fixed size: all workers start together, and the first failure ends the job.

A worker that fails only because it lost another, or because that one has left, is not a reason to end the other before
it could end by itself and say why: it gets `BLAMED_SECONDS`.

An agent that is lost takes its workers with it: the kernel ends them when the agent dies, and the agent ends them when
it hears nothing of the launcher. Its host counts as the first failure, and the job ends on all others.
"""

from __future__ import annotations

from dataclasses import replace

from farandole.control.launcher.slots.job_events import (
    FINISHED,
    SUCCEEDED,
    EndJob,
    Event,
    HostLost,
    Say,
    Tick,
    WorkerEnded,
)
from farandole.control.launcher.slots.job_state import Blame, JobState, Step, living, with_slots

BLAMED_SECONDS = 1.0


def apply(state: JobState, event: Event, now: float) -> Step:
    """Return the next state, what to do, and the one line that says why; the roster says most about workers."""
    if isinstance(event, WorkerEnded):
        return _worker_ended(state, event, now)
    if isinstance(event, HostLost):
        return _host_lost(state, event)
    if isinstance(event, Tick):
        return _end_for(state, [blame for blame in state.blames if blame.until <= now])
    return state, [], ""


def _worker_ended(state: JobState, event: WorkerEnded, now: float) -> Step:
    state = _without(state, event.worker)
    if event.how not in (SUCCEEDED, FINISHED) and state.end is None:
        blamed = event.worker if event.blames is None or event.blames not in living(state) else event.blames
        blame = Blame(event.worker, blamed, now + BLAMED_SECONDS)
        state = replace(state, blames=(*state.blames, blame))
    over = [blame for blame in state.blames if blame.blamed == event.worker]
    if living(state):
        return _end_for(state, over)
    # What workers left running must go too.
    state, actions, reason = _end_for(state, list(state.blames))
    return state, [*actions, EndJob("")], reason


def _end_for(state: JobState, blames: list[Blame]) -> Step:
    """End the job for the workers that need not wait any more for others to say why they have failed."""
    left = tuple(blame for blame in state.blames if blame not in blames)
    return replace(state, blames=left), [EndJob("", because_of=blame.worker) for blame in blames], ""


def _host_lost(state: JobState, event: HostLost) -> Step:
    if event.local and state.end is not None:
        return state, [EndJob("", grace=state.end.grace, stop_code=1)], ""
    if event.local:
        said = Say(f"error: {event.why}; killing the workers")
        return state, [said, EndJob("", grace=0.0, stop_code=1)], said.text
    for worker in event.workers:
        state = _without(state, worker)
    if state.end is not None:
        return state, [], ""
    what = f"host {event.label} is lost: {event.why}"
    return state, [Say(f"warning: {what}; ending the workers on the other hosts"), EndJob("")], what


def _without(state: JobState, worker: int) -> JobState:
    return with_slots(state, {worker: {"worker": None}})

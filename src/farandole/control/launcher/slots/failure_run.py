"""The rule that a job whose workers fail again and again is not continued for ever.

A slot is retried after longer and longer waits, and a worker that is killed (for want of memory, say) may have better
luck next time. But a job that has too few workers because each new one fails soon after its start does no work. It gets
the elastic timeout, as a job without enough slots does: from the third such failure in a row, until a new
worker is healthy.

A failure counts if it leaves fewer workers than the minimum, and if the worker was started after the last failure that
counted: workers that fail together count once. Workers that are lost with their host do not count.
"""

from __future__ import annotations

import math
from dataclasses import replace

from farandole.base.display.wording import count
from farandole.control.launcher.slots.job_events import EndJob, Say, SlotAction, WorkerEnded
from farandole.control.launcher.slots.job_state import FailureRun, JobState, Site, at_work

# A worker that has been in a world for this long was healthy: a later failure is something new.
HEALTHY_SECONDS = 60.0
# This number of failures in a row is no coincidence.
FAILURES_IN_A_ROW = 3


def is_healthy(state: JobState, worker: int, now: float) -> bool:
    """Return whether a worker that has not ended, or ends now, has been in a world for `HEALTHY_SECONDS`."""
    return now - state.joined_at.get(worker, now) >= HEALTHY_SECONDS


def forget_if_healthy(state: JobState, now: float) -> JobState:
    """Return the state without the failures in a row, if a worker that was started after them is healthy."""
    run = state.failure_run
    if run.times and any(worker >= run.next_worker and is_healthy(state, worker, now) for worker in state.joined_at):
        return replace(state, failure_run=FailureRun())
    return state


def count_failure(state: JobState, event: WorkerEnded, site: Site, now: float) -> tuple[JobState, list[SlotAction]]:
    """Count the failure of a worker that was not healthy, and end the job if workers have failed for too long.

    Args:
        state: the state, without the worker.
        event: the failure.
        site: the host of the worker.
        now: the time on the clock of the state.
    """
    run = state.failure_run
    if event.worker < run.next_worker or site.phase != "ready" or site.closed or state.closing or _are_enough(state):
        return state, []
    run = replace(run, times=run.times + 1, worker=event.worker, next_worker=state.next_worker)
    if run.since is not None:
        state = replace(state, failure_run=run)
        return state, [_end(state)] if now >= run.since + state.limits.timeout else []
    if run.times < FAILURES_IN_A_ROW:
        return replace(state, failure_run=run), []
    timeout = state.limits.timeout
    ends = "" if math.isinf(timeout) else f"If this goes on for {timeout:g} s (the elastic timeout), the job ends. "
    said = (
        f"warning: worker {event.worker} on {site.label} {event.in_words} soon after its start, like {run.times - 1} "
        f"others before it, and fewer than {_least(state)} are left. {ends}Look for the cause in the output of "
        "the workers"
    )
    return replace(state, failure_run=replace(run, since=now)), [Say(said)]


def end_if_failing(state: JobState, now: float) -> tuple[JobState, list[SlotAction]]:
    """End the job if new workers have failed for too long, and none is running that could be healthy.

    If it has too few slots, it waits for more hosts instead.
    """
    since = state.failure_run.since
    if since is None or state.closing or now < since + state.limits.timeout:
        return state, []
    slots = sum(site.size for site in state.sites if site.phase == "ready" and not site.closed)
    return state, [_end(state)] if slots >= state.limits.min_size and not _are_enough(state) else []


def _are_enough(state: JobState) -> bool:
    return len(at_work(state)) + len(state.early) >= state.limits.min_size


def _least(state: JobState) -> str:
    return f"{count(state.limits.min_size, 'worker')} (the job's minimum)"


def _end(state: JobState) -> EndJob:
    run = state.failure_run
    why = (
        f"new workers failed again and again for {state.limits.timeout:g} s (the elastic timeout): {run.times} in a "
        f"row before they had been in a world for {HEALTHY_SECONDS:g} s, and fewer than {_least(state)} were left"
    )
    return EndJob(why, worker=run.worker)

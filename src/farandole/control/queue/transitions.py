"""State transitions of one job: by the observed state of its attempt, and by changes of its slots. Pure."""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from farandole.control.queue.model import (
    Action,
    AttemptFact,
    AttemptReport,
    AttemptState,
    Phase,
    QueueJob,
    SetHosts,
    StartAttempt,
    StopAttempt,
    StopReason,
    in_words,
)
from farandole.control.scheduler.handover import Slots, count, larger


def observed(job: QueueJob, fact: AttemptFact, down: Collection[str], now: float) -> QueueJob:
    """Return the job after an observation of its attempt.

    Args:
        job: a job with an attempt.
        fact: the observation.
        down: hosts that do not answer.
        now: seconds since 1970.
    """
    gone = fact.seen is AttemptState.ORPHANED and not job.spec.is_elastic
    if gone or fact.seen in (AttemptState.ENDED, AttemptState.MACHINE_LOST):
        return _over(job, fact, down, now)
    if fact.seen is AttemptState.NOTHING and job.phase is Phase.RUNNING:
        return replace(job, phase=Phase.STARTING)  # No files: this is a copy of the queue on another machine.
    if fact.seen is AttemptState.RUNS and job.phase is Phase.STARTING:
        job = replace(job, phase=Phase.RUNNING)
    if job.phase is Phase.RUNNING:
        job = replace(job, held=_held(job, fact.report), largest_run=max(job.largest_run, _workers(job, fact.report)))
    return job


def _workers(job: QueueJob, report: AttemptReport | None) -> int:
    """Return the number of workers of a job; 0 for an elastic job before its first report."""
    if report is None:
        return 0 if job.spec.is_elastic else count(job.slots)
    return report.workers


def _held(job: QueueJob, report: AttemptReport | None) -> Slots:
    """Return the slots that an elastic job may still use: more than its own until it reports that workers have left."""
    if not job.spec.is_elastic or job.held == job.slots:
        return job.held
    if report is None or report.at <= job.changed:
        return job.held
    held = {}
    for host, number in job.held.items():
        mine, said = job.slots.get(host, 0), report.hosts.get(host)
        if said is None:
            left = 0  # The job does not know the host any more.
        elif said.slots > mine:
            left = number  # It has not read the smaller number yet, or workers are still leaving the host.
        else:
            left = min(number, said.workers)
        if max(mine, left):
            held[host] = max(mine, left)
    return held


def _over(job: QueueJob, fact: AttemptFact, down: Collection[str], now: float) -> QueueJob:
    """Return the job once no process of its attempt runs any more."""
    was, why, code = job.phase, job.why_stopped, fact.exit_code
    lost = sorted(host for host in job.slots if host in down)
    job = replace(without_slots(job, now), held={}, why_stopped=None, urgent=False)
    # If a job saves its state after another signal than SIGTERM, its exit code does not show whether work was left.
    saved_itself = was is Phase.STOPPING and fact.was_told and job.spec.signal != "SIGTERM"
    if code == 0 and not saved_itself:
        return replace(job, phase=Phase.SUCCEEDED, finished=now, exit_code=0, reason="")
    if was is Phase.STOPPING:
        if why is StopReason.CANCEL:
            return replace(job, phase=Phase.CANCELLED, finished=now, exit_code=code, reason="")
        if why is StopReason.SUSPEND:
            return replace(job, phase=Phase.SUSPENDED, reason="until farandole resume")
        return _again(job, "")
    if fact.seen is AttemptState.MACHINE_LOST:
        return _again(job, "the queue's machine was restarted; it begins again")
    if lost:
        return _again(job, f"host {', '.join(lost)} was lost; it begins again")
    how = "its runner was killed" if code is None else f"it ended with code {code}"
    if job.failures < job.spec.retries:
        job = replace(job, failures=job.failures + 1)
        return _again(job, f"{how}; try {job.failures + 1} of {job.spec.retries + 1}")
    return replace(job, phase=Phase.FAILED, finished=now, exit_code=code, reason=how)


def _again(job: QueueJob, reason: str) -> QueueJob:
    return replace(job, phase=Phase.WAITING, reason=reason)


def started(job: QueueJob, slots: Slots, now: float) -> QueueJob:
    """Return a waiting job after it has been granted slots for its next attempt."""
    assert job.phase is Phase.WAITING
    job = with_slots(job, slots, now, moved=False)
    return replace(job, phase=Phase.STARTING, attempt=job.attempt + 1, held=dict(slots), reason="")


def with_slots(job: QueueJob, slots: Slots, now: float, *, moved: bool) -> QueueJob:
    """Return a job with other slots.

    Args:
        job: a job that has slots, or waits for some.
        slots: the new slots; not empty.
        now: seconds since 1970.
        moved: whether the new slots are of the same type and shape as the old ones, which counts as no change.
    """
    return replace(
        job,
        slots=dict(slots),
        held=larger(job.held, slots),
        changed=now,
        account=job.account if moved else job.account.changed(count(slots), now),
    )


def without_slots(job: QueueJob, now: float) -> QueueJob:
    """Return a job without slots; it may still hold its former ones."""
    if not job.has_slots:
        return job
    return replace(job, slots={}, account=job.account.changed(0, now))


def stopped(job: QueueJob, why: StopReason, reason: str, now: float) -> QueueJob:
    """Return a job whose attempt is to be ended."""
    job = without_slots(job, now)
    return replace(job, phase=Phase.STOPPING, why_stopped=why, reason=reason)


def shrunk(job: QueueJob, slots: Slots, now: float) -> QueueJob:
    """Return an elastic job after the loss of hosts: only `slots` are left, and lost workers hold no slots any more."""
    job = with_slots(job, slots, now, moved=False)
    return replace(job, held={host: number for host, number in job.held.items() if host in slots})


def actions_of(job: QueueJob, fact: AttemptFact) -> list[Action]:
    """Return the actions for a job in its state and with its observed attempt; all may be repeated."""
    attempt = job.attempt
    if job.phase is Phase.STARTING:
        return [StartAttempt(job.name, attempt)]
    if job.phase is Phase.RUNNING and job.spec.is_elastic:
        begin: list[Action] = [StartAttempt(job.name, attempt)] if fact.seen is AttemptState.ORPHANED else []
        return [*begin, SetHosts(job.name, attempt, job.slots, job.slot_numbers)]
    if job.phase is Phase.STOPPING:
        begin = [StartAttempt(job.name, attempt)] if fact.seen is AttemptState.ORPHANED and job.spec.is_elastic else []
        return [StopAttempt(job.name, attempt, _how(job)), *begin]
    return []


def _how(job: QueueJob) -> str:
    if job.urgent or job.why_stopped is StopReason.HOST_LOST:
        return "kill"
    if job.why_stopped is not StopReason.CANCEL:
        return "kill" if job.spec.how_suspended == "requeue" else "suspend"
    return "cancel"


def describe_change(before: QueueJob, after: QueueJob) -> str:
    """Return a sentence for the user about a change of a job; "" if the change is not worth reporting."""
    if after.phase is before.phase:
        changed = after.slots != before.slots and after.has_slots
        return f"has {in_words(after.slots)} now" if changed else ""
    told = {
        Phase.WAITING: "waits again",
        Phase.STARTING: f"starts on {in_words(after.slots)}",
        Phase.RUNNING: f"runs on {in_words(after.slots)}",
        Phase.STOPPING: "is being ended",
        Phase.SUSPENDED: "is suspended",
        Phase.SUCCEEDED: "has succeeded",
        Phase.FAILED: "has failed",
        Phase.CANCELLED: "is cancelled",
    }[after.phase]
    return f"{told}: {after.reason}" if after.reason else told

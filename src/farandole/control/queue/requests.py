"""Requests of users to the queue: checks, and the jobs that result. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from farandole.base.display.wording import count
from farandole.base.spelling import did_you_mean
from farandole.control.jobs import refusals
from farandole.control.jobs.errors import NotAllowed, Refused, UnknownJob
from farandole.control.jobs.spec import JobSpec
from farandole.control.queue.model import STATES, Owner, Phase, QueueHost, QueueJob, StopReason
from farandole.control.queue.settings import QueueSettings
from farandole.control.queue.transitions import stopped
from farandole.control.queue.views import most_slots
from farandole.control.scheduler.account import Account
from farandole.control.scheduler.room import tightest_limit


class Requester(NamedTuple):
    """The user behind a request, and whether that user is an administrator."""

    owner: Owner
    is_admin: bool


def submitted(
    spec: JobSpec,
    requester: Requester,
    jobs: Mapping[str, QueueJob],
    hosts: Sequence[QueueHost],
    settings: QueueSettings,
    now: float,
    key: str = "",
) -> QueueJob:
    """Return the job that is accepted; `spec` has a name.

    Raises:
        Refused: it could never run, its queue is unknown, a quota is reached, or its name is taken.
    """
    spec.check()
    settings.check_queue(spec.queue)
    _check_size(spec.workers.min, hosts)
    _check_shares(spec.workers.min, spec.queue, requester.owner, settings)
    _check_jobs(requester.owner, jobs, settings)
    there = jobs.get(spec.name)
    if there is not None and not there.phase.is_over:
        raise Refused(f"there is already a job {spec.name} of {there.owner.name}", "choose another name: --name NAME")
    if there is not None and there.owner.uid != requester.owner.uid and not requester.is_admin:
        raise Refused(f"{there.owner.name} had a job {spec.name}", "choose another name: --name NAME")
    attempt = 0 if there is None else there.attempt  # Its attempts get new numbers, and so their own files.
    return QueueJob(spec.name, spec, requester.owner, now, key, account=Account(since=now), attempt=attempt)


def _check_size(least: int, hosts: Sequence[QueueHost]) -> None:
    """Check that the hosts have enough slots for a job, free or not."""
    most = most_slots(hosts)
    if least > most:
        exist = ", ".join(f"{host.name}:{host.slots}" for host in hosts) or "no host"
        types = {host.type for host in hosts}
        of_one = " of one type" if len(types) > 1 else ""
        raise Refused(
            f"{least} workers can never run here: there are {most} slots{of_one} ({exist})",
            f"ask for {most} at most, such as -np {most}, or add hosts: farandole queue hosts add h9:4"
            if most
            else "add hosts: farandole queue hosts add h9:4",
        )


def _check_shares(least: int, queue: str, owner: Owner, settings: QueueSettings) -> None:
    """Check that quota and limits ever allow a job its slots."""
    slots = settings.quota(owner.name).slots
    if slots is not None and least > slots:
        raise Refused(
            f"{owner.name} may have {count(slots, 'slot')} at once, and the job needs {least}",
            f"ask for {slots} at most" if slots else "ask an administrator of the queue",
        )
    limited = tightest_limit(queue, settings.rules())
    if limited is not None and limited.limit is not None and least > limited.limit:
        raise Refused(
            f"queue {limited.name} may have {count(limited.limit, 'slot')} at once, and the job needs {least}",
            f"ask for {limited.limit} at most, or use another queue: --queue NAME",
        )


def _check_jobs(owner: Owner, jobs: Mapping[str, QueueJob], settings: QueueSettings) -> None:
    """Check that a user's quota allows another job."""
    most = settings.quota(owner.name).jobs
    mine = sum(job.owner.name == owner.name and not job.phase.is_over for job in jobs.values())
    if most is not None and mine >= most:
        raise Refused(
            f"quota reached: {owner.name} has {mine} of {most} jobs",
            "wait until one is over, or cancel one: farandole cancel JOB",
        )


def find(name: str, jobs: Mapping[str, QueueJob]) -> QueueJob:
    """Return a job by its name.

    Raises:
        UnknownJob: there is no such job.
    """
    if name not in jobs:
        raise UnknownJob(f"there is no job {name}", did_you_mean(name, jobs, "farandole jobs lists them"))
    return jobs[name]


def check_owner(job: QueueJob, requester: Requester, what: str) -> None:
    """Check that a user may do something with a job.

    Raises:
        NotAllowed: the user may not.
    """
    if not requester.is_admin and job.owner.uid != requester.owner.uid:
        raise NotAllowed(
            f"job {job.name} belongs to {job.owner.name}: {requester.owner.name} cannot {what} it",
            "its owner can, and an administrator of the queue",
        )


def cancelled(job: QueueJob, now: float) -> QueueJob:
    """Return the job, marked to be cancelled; if it is being cancelled already, to be killed at once.

    Raises:
        Refused: the job is over.
    """
    if job.phase.is_over:
        raise refusals.is_over(job.name, STATES[job.phase], "there is nothing to cancel")
    if not job.phase.has_attempt:
        return replace(job, phase=Phase.CANCELLED, finished=now, reason="")
    if job.phase is Phase.STOPPING and job.why_stopped is StopReason.CANCEL:
        return replace(job, urgent=True)
    return stopped(job, StopReason.CANCEL, "it was cancelled", now)


def suspended(job: QueueJob, now: float) -> QueueJob:
    """Return the job, marked to release its slots until it is resumed.

    Raises:
        Refused: the job is over, or cannot be suspended without losing its progress.
    """
    if job.phase.is_over:
        raise refusals.is_over(job.name, STATES[job.phase], "there is nothing to suspend")
    if job.phase is Phase.STOPPING and job.why_stopped is StopReason.CANCEL:
        raise Refused(f"job {job.name} is being cancelled", "submit it again")
    if job.phase in (Phase.WAITING, Phase.SUSPENDED):
        return replace(job, phase=Phase.SUSPENDED, reason="until farandole resume")
    if job.spec.how_suspended == "never":
        raise refusals.cannot_be_suspended(job.name)
    return stopped(job, StopReason.SUSPEND, "it was suspended", now)


def resumed(job: QueueJob, now: float) -> QueueJob:
    """Return a suspended job, marked to wait for slots again.

    Raises:
        Refused: the job is not suspended.
    """
    if job.phase is Phase.STOPPING and job.why_stopped is StopReason.SUSPEND:
        return replace(job, why_stopped=StopReason.PREEMPT, reason="it goes on as soon as it can")
    if job.phase is not Phase.SUSPENDED:
        raise refusals.is_not_suspended(job.name, STATES[job.phase])
    return replace(job, phase=Phase.WAITING, account=job.account.changed(0, now), reason="")


def scaled(job: QueueJob, workers: int, hosts: Sequence[QueueHost], settings: QueueSettings) -> QueueJob:
    """Return a job with another number of workers.

    Raises:
        Refused: the job cannot have that number.
    """
    if job.phase.is_over:
        raise refusals.is_over(job.name, STATES[job.phase])
    limits = job.spec.workers
    if job.spec.is_elastic:
        refusals.check_workers(job.name, workers, limits.min, limits.max)
        return replace(job, wanted=workers)
    refusals.check_workers(job.name, workers)
    if job.phase.has_attempt:
        raise Refused(
            f"job {job.name} is not elastic: it keeps its workers while it runs",
            "suspend it, scale it and resume it, or submit it with -np MIN:MAX",
        )
    _check_size(workers, hosts)
    _check_shares(workers, job.spec.queue, job.owner, settings)
    return replace(job, wanted=workers)

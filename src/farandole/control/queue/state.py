"""The daemon's memory: the content of the database, and the result of the last turn. One thread owns it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from farandole.control.jobs.errors import Refused
from farandole.control.jobs.spec import from_dict
from farandole.control.jobs.status import JobStatus
from farandole.control.queue import requests
from farandole.control.queue.model import STATES, AttemptFact, JobEvent, Phase, QueueHost, QueueJob
from farandole.control.queue.protocol import Submit
from farandole.control.queue.reconcile import Turn
from farandole.control.queue.requests import Requester
from farandole.control.queue.settings import QueueSettings
from farandole.control.queue.store import QueueStore
from farandole.control.scheduler.handover import count

_FIRST = "amber bold brave bright calm clever eager fair fleet gentle glad golden happy kind lively lucky mellow merry"
_SECOND = "badger crane dancer falcon finch fox hare heron ibis lark lynx marten otter owl panda robin seal swan wren"
# Maximum number of characters of a command, or of a reason, in the list of all jobs.
_LISTED = 4096


class QueueState:
    """Jobs, hosts and settings. Every change is written to the database before it is made here.

    Attributes:
        jobs: all jobs by name, oldest first.
        hosts: the hosts of the queue.
        settings: the settings of the queue.
        facts: the last observed attempts.
        reasons: the reason in the last decision for each job.
        changed: whether something has changed since the last turn.
    """

    def __init__(self, store: QueueStore) -> None:
        self._store = store
        self.jobs: dict[str, QueueJob] = store.jobs()
        self.hosts: tuple[QueueHost, ...] = store.hosts()
        self.settings: QueueSettings = store.settings()
        self.facts: Mapping[str, AttemptFact] = {}
        self.reasons: Mapping[str, str] = {}
        self.changed = True

    # --- changes by users ----------------------------------------------------------------------------------------

    def submit(self, ask: Submit, requester: Requester, now: float) -> str:
        """Accept a job; return its name.

        Raises:
            JobError: the job is refused.
        """
        for job in self.jobs.values():
            if ask.key and job.key == ask.key and job.owner.uid == requester.owner.uid:
                return job.name  # Its client did not receive the answer.
        plain = dict(ask.spec)
        if not plain.get("name"):
            plain["name"] = self._free_name()
        job = requests.submitted(from_dict(plain), requester, self.jobs, self.hosts, self.settings, now, ask.key)
        self._store.add_job(job, ask.environment, ask.directory, [JobEvent(job.name, "was submitted")], now)
        self.jobs.pop(job.name, None)  # A new job with an old name comes last.
        self.jobs[job.name] = job
        self.changed = True
        return job.name

    def _free_name(self) -> str:
        for most in itertools.count(99):  # The range grows each time, so that there is always a free name.
            name = f"{random.choice(_FIRST.split())}-{random.choice(_SECOND.split())}-{random.randint(10, most)}"
            if name not in self.jobs:
                return name
        raise AssertionError

    def change(self, verb: str, name: str, workers: int, requester: Requester, now: float, key: str = "") -> None:
        """Cancel, suspend, resume or scale a job; a repeated request, with the key of the last change, does nothing.

        Raises:
            JobError: the change is refused.
        """
        job = requests.find(name, self.jobs)
        requests.check_owner(job, requester, verb)
        if key and key == job.change_key:
            return  # Its client did not receive the answer.
        if verb == "scale":
            after, said = requests.scaled(job, workers, self.hosts, self.settings), f"{workers} workers were asked for"
        elif verb in _CHANGES:
            after, said = _CHANGES[verb](job, now), _SAID[verb]
        else:
            raise Refused(f"{verb!r} is not a change of a job", "use cancel, suspend, resume or scale")
        by = "" if requester.owner.uid == job.owner.uid else f" by {requester.owner.name}"
        self._write([replace(after, change_key=key)], [JobEvent(name, said + by)], now)

    def configure(self, settings: QueueSettings) -> None:
        self._store.write_settings(settings)
        self.settings = settings
        self.changed = True

    def set_hosts(self, hosts: Sequence[QueueHost]) -> None:
        if tuple(hosts) != self.hosts:
            self._store.write_hosts(hosts)
            self.hosts = tuple(hosts)
            self.changed = True

    # --- turns -------------------------------------------------------------------------------------------------------

    def apply(self, turn: Turn, facts: Mapping[str, AttemptFact], now: float) -> None:
        """Write the result of a turn to the database, then make it current."""
        changed = [job for name, job in turn.jobs.items() if job != self.jobs[name]]
        self.changed = False
        if changed:
            self._write(changed, turn.events, now)
        self.facts = facts
        self.reasons = turn.reasons

    def _write(self, jobs: Iterable[QueueJob], events: Sequence[JobEvent], now: float) -> None:
        jobs = list(jobs)
        self._store.write_jobs(jobs, events, now)
        self.jobs.update({job.name: job for job in jobs})
        self.changed = True

    def old(self, now: float) -> list[QueueJob]:
        """Return jobs that ended more than `keep` seconds ago."""
        return [
            job
            for job in self.jobs.values()
            if job.finished is not None and now - job.finished > self.settings.keep and job.phase.is_over
        ]

    def forget(self, jobs: Sequence[QueueJob]) -> None:
        """Remove jobs that are over, from the database and from memory."""
        if jobs:
            self._store.forget(job.name for job in jobs)
            for job in jobs:
                del self.jobs[job.name]

    # --- answers for users ---------------------------------------------------------------------------------------

    def statuses(self) -> list[JobStatus]:
        """Return the status of all jobs, oldest first; long texts are cut, since one answer holds all of them."""
        return [_shortened(self.status(name)) for name in self.jobs]

    def status(self, name: str, *, whole: bool = False) -> JobStatus:
        """Return the status of a job; `whole` adds its events.

        Raises:
            UnknownJob: there is no such job.
        """
        job = requests.find(name, self.jobs)
        fact = self.facts.get(name)
        report = fact.report if fact is not None and job.phase is Phase.RUNNING else None
        running = count(job.slots) if job.phase is Phase.RUNNING else 0
        return JobStatus(
            job.name,
            STATES[job.phase],
            "queue",
            job.spec.command,
            job.owner.name,
            job.spec.queue,
            job.spec.priority,
            report.workers if report is not None else running,
            count(job.slots) if job.has_slots else job.replicas,
            self._reason(job, report.waits_for if report is not None else ""),
            job.submitted,
            job.account.started,
            job.finished,
            tuple(f"{host}:{number}" for host, number in (job.slots or job.held).items()),
            steps_per_second=None if report is None else report.steps_per_second,
            restarts=job.account.restarts,
            exit_code=job.exit_code,
            events=self._store.events(name) if whole else (),
        )

    def _reason(self, job: QueueJob, waits_for: str) -> str:
        if job.phase is Phase.WAITING:
            return self.reasons.get(job.name) or job.reason or "waits: it was just submitted"
        if job.phase is Phase.RUNNING:
            return waits_for
        return job.reason


def _shortened(status: JobStatus) -> JobStatus:
    words, left = [], _LISTED
    for word in status.command:
        words.append(word if len(word) <= left else word[: max(0, left)] + "…")
        left -= len(word) + 1
        if left < 0:
            break
    reason = status.reason if len(status.reason) <= _LISTED else status.reason[:_LISTED] + "…"
    return replace(status, command=tuple(words), reason=reason)


_CHANGES = {"cancel": requests.cancelled, "suspend": requests.suspended, "resume": requests.resumed}
_SAID = {"cancel": "was cancelled", "suspend": "was suspended", "resume": "was resumed"}

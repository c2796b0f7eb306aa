"""What the daemon has in memory: the database's content, and what the last turn has said. One thread owns it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from farandole.control.jobs.errors import Refused
from farandole.control.jobs.spec import from_dict
from farandole.control.jobs.status import JobStatus
from farandole.control.queue import requests
from farandole.control.queue.model import STATES, AttemptFact, Event, Phase, QueueHost, QueueJob
from farandole.control.queue.protocol import Submit
from farandole.control.queue.reconcile import Turn
from farandole.control.queue.requests import Asker
from farandole.control.queue.settings import QueueSettings
from farandole.control.queue.store import Store
from farandole.control.scheduler.handover import count

_FIRST = "amber bold brave bright calm clever eager fair fleet gentle glad golden happy kind lively lucky mellow merry"
_SECOND = "badger crane dancer falcon finch fox hare heron ibis lark lynx marten otter owl panda robin seal swan wren"
# Characters of a command, or of a reason, in the list of all jobs.
_LISTED = 4096


class QueueState:
    """Jobs, hosts and settings. Every change is in the database before it is here.

    Attributes:
        jobs: by name, the oldest first.
        hosts: of the queue.
        settings: of the queue.
        facts: what was seen of attempts last.
        reasons: what the last decision said about each job.
        changed: whether something has changed since the last turn.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.jobs: dict[str, QueueJob] = store.jobs()
        self.hosts: tuple[QueueHost, ...] = store.hosts()
        self.settings: QueueSettings = store.settings()
        self.facts: Mapping[str, AttemptFact] = {}
        self.reasons: Mapping[str, str] = {}
        self.changed = True

    # --- changes that users ask for ------------------------------------------------------------------------------

    def submit(self, ask: Submit, asker: Asker, now: float) -> str:
        """Take a job in; return its name.

        Raises:
            JobError: it is not taken.
        """
        for job in self.jobs.values():
            if ask.key and job.key == ask.key and job.owner.uid == asker.owner.uid:
                return job.name  # Its client did not hear the answer.
        plain = dict(ask.spec)
        if not plain.get("name"):
            plain["name"] = self._free_name()
        job = requests.submitted(from_dict(plain), asker, self.jobs, self.hosts, self.settings, now, ask.key)
        self._store.add_job(job, ask.environment, ask.directory, [Event(job.name, "was submitted")], now)
        self.jobs.pop(job.name, None)  # A new job of an old name comes last.
        self.jobs[job.name] = job
        self.changed = True
        return job.name

    def _free_name(self) -> str:
        for most in itertools.count(99):  # There are more numbers each time, so that there is always a free name.
            name = f"{random.choice(_FIRST.split())}-{random.choice(_SECOND.split())}-{random.randint(10, most)}"
            if name not in self.jobs:
                return name
        raise AssertionError

    def change(self, verb: str, name: str, workers: int, asker: Asker, now: float, key: str = "") -> None:
        """Cancel, suspend, resume or scale a job; a request whose key is that of the last one is made already.

        Raises:
            JobError: it is not done.
        """
        job = requests.find(name, self.jobs)
        requests.check_owner(job, asker, verb)
        if key and key == job.change_key:
            return  # Its client did not hear the answer.
        if verb == "scale":
            after, said = requests.scaled(job, workers, self.hosts, self.settings), f"{workers} workers were asked for"
        elif verb in _CHANGES:
            after, said = _CHANGES[verb](job, now), _SAID[verb]
        else:
            raise Refused(f"there is no {verb!r} for jobs of a queue", "cancel, suspend, resume and scale")
        by = "" if asker.owner.uid == job.owner.uid else f" by {asker.owner.name}"
        self._write([replace(after, change_key=key)], [Event(name, said + by)], now)

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

    def take(self, turn: Turn, facts: Mapping[str, AttemptFact], now: float) -> None:
        """Write down what a turn has come to."""
        changed = [job for name, job in turn.jobs.items() if job != self.jobs[name]]
        self.changed = False
        if changed:
            self._write(changed, turn.events, now)
        self.facts = facts
        self.reasons = turn.reasons

    def _write(self, jobs: Iterable[QueueJob], events: Sequence[Event], now: float) -> None:
        jobs = list(jobs)
        self._store.write_jobs(jobs, events, now)
        self.jobs.update({job.name: job for job in jobs})
        self.changed = True

    def old(self, now: float) -> list[QueueJob]:
        """Return jobs that have been over for long."""
        return [
            job
            for job in self.jobs.values()
            if job.finished is not None and now - job.finished > self.settings.keep and job.phase.is_over
        ]

    def forget(self, jobs: Sequence[QueueJob]) -> None:
        """Remove jobs that are over."""
        if jobs:
            self._store.forget(job.name for job in jobs)
            for job in jobs:
                del self.jobs[job.name]

    # --- what people are told ------------------------------------------------------------------------------------

    def statuses(self) -> list[JobStatus]:
        """Return how all jobs are, the oldest first; of what is long, the beginning, as one answer has all of them."""
        return [_shortened(self.status(name)) for name in self.jobs]

    def status(self, name: str, *, whole: bool = False) -> JobStatus:
        """Return how a job is; with what happened to it, if all is wanted.

        Raises:
            UnknownJob: there is none of that name.
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
            return self.reasons.get(job.name) or job.reason or "waits: it was only just submitted"
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

"""A fake of everything that a queue acts on: attempts with runners, in simulated time; and a daemon that may die
anywhere.

The daemon is the real one except for its loop: the state, the database and the turns are real. Between any two of its
steps it can be killed (`Crash`), which loses everything in its memory.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farandole.base.wire.rendezvous import Measures
from farandole.control.jobs.errors import JobError
from farandole.control.queue.hosts import parse_queue_hosts
from farandole.control.queue.measures import measured_by, reports_of
from farandole.control.queue.model import (
    Action,
    AttemptFact,
    AttemptReport,
    AttemptState,
    HostWorkers,
    Owner,
    Phase,
    QueueHost,
    QueueJob,
    SetBatch,
    SetHosts,
    StartAttempt,
    StopAttempt,
)
from farandole.control.queue.protocol import Submit
from farandole.control.queue.reconcile import turn
from farandole.control.queue.requests import Requester
from farandole.control.queue.settings import QueueSettings
from farandole.control.queue.state import QueueState
from farandole.control.queue.store import QueueStore
from farandole.control.scheduler.handover import Standing, count
from farandole.control.scheduler.policies import make_policy
from farandole.control.scheduler.policy import Policy

ANN = Requester(Owner(1001, 1001, "ann"), False)
BOB = Requester(Owner(1002, 1002, "bob"), False)
ROOT = Requester(Owner(0, 0, "root"), True)


class Crash(Exception):
    """The daemon was killed."""


@dataclass
class FakeAttempt:
    """One attempt: the content of its files, and its processes."""

    elastic: bool
    slots: dict[str, int]
    """The slots that the launcher has read; `written`: the slots in the file."""
    left: float
    """Remaining work in slot-seconds."""
    code: int
    runner_at: float | None = None
    """The time at which the started runner claims the attempt."""
    runner: bool = False
    begun: int = 0
    order: str = ""
    ended: AttemptFact | None = None
    workers: dict[str, int] = field(default_factory=dict)
    stops_at: float | None = None
    written: dict[str, int] = field(default_factory=dict)
    read_at: float | None = None
    left_at: float | None = None
    """The time at which leaving workers have left."""
    batch: int = 0
    """The batch size that was sent to its launcher."""
    measures: dict[tuple[tuple[str, ...], int], Measures] = field(default_factory=dict)
    """The measurements of its training, by hosts and workers; the latest at the end."""

    @property
    def runs(self) -> bool:
        return self.begun > 0 and self.ended is None


class World:
    """Attempts, in simulated time that a test advances.

    Args:
        delay: returns the seconds that an action takes.
        end_seconds: the seconds that a job takes to end when it is ended.
        pass_seconds: the seconds of a pass on each host, for trainings that measure it; empty: no measurements.
    """

    def __init__(
        self,
        delay: Callable[[], float] = lambda: 0.0,
        end_seconds: float = 0.0,
        pass_seconds: Mapping[str, float] | None = None,
    ) -> None:
        self.now = 1000.0
        self.attempts: dict[tuple[str, int], FakeAttempt] = {}
        self.work: dict[str, tuple[float, int]] = {}
        """Slot-seconds and exit code of each job."""
        self.saved: dict[str, float] = {}
        """Remaining slot-seconds of jobs that save checkpoints."""
        self._delay = delay
        self._end_seconds = end_seconds
        self._pass_seconds = pass_seconds or {}

    # --- as the executor does ----------------------------------------------------------------------------------------

    def observe(self, jobs: Mapping[str, QueueJob]) -> dict[str, AttemptFact]:
        return {name: self._look(job) for name, job in jobs.items() if job.phase.has_attempt}

    def _look(self, job: QueueJob) -> AttemptFact:
        attempt = self.attempts.get((job.name, job.attempt))
        if attempt is None:
            return AttemptFact(AttemptState.NOTHING)
        if attempt.ended is not None:
            return attempt.ended
        if not attempt.begun:
            return AttemptFact(AttemptState.NOTHING)
        report = None
        if attempt.elastic:
            hosts = {
                host: HostWorkers(attempt.slots.get(host, 0), attempt.workers.get(host, 0))
                for host in {**attempt.slots, **attempt.workers}
            }
            self._measure(attempt)
            measures = tuple(attempt.measures.values())
            size = count(attempt.workers)
            report = AttemptReport(self.now + 1e-6, hosts, size, measures=measures, scheduled_batch=attempt.batch)
        return AttemptFact(AttemptState.RUNS if attempt.runner else AttemptState.ORPHANED, report=report)

    def _measure(self, attempt: FakeAttempt) -> None:
        """Simulate the measurement of a training's present configuration, with an allreduce that takes a tenth of a
        pass.
        """
        on = tuple(sorted(host for host, workers in attempt.workers.items() if workers))
        if on and all(host in self._pass_seconds for host in on):
            workers, seconds = count(attempt.workers), max(self._pass_seconds[host] for host in on)
            sync = 0.1 * seconds if workers > 1 else 0.0
            found = Measures(32, 4096, 64, len(on), workers, 32.0, seconds + sync, sync, 1.0, 9000.0, 10.0, on)
            attempt.measures.pop((on, workers), None)
            attempt.measures[on, workers] = found

    def measured_before(self, job: QueueJob, number: int) -> tuple[Measures, ...]:
        attempt = self.attempts.get((job.name, number))
        return tuple(attempt.measures.values()) if attempt is not None else ()

    def carry_out(self, action: Action, jobs: Mapping[str, QueueJob]) -> None:
        job, key = jobs[action.job], (action.job, action.attempt)
        if isinstance(action, StartAttempt):
            left, code = self.work[job.name]
            left = self.saved.get(job.name, left)
            new = FakeAttempt(job.spec.is_elastic, dict(job.slots), left, code, written=dict(job.slots))
            attempt = self.attempts.setdefault(key, new)
            if not attempt.runner and attempt.runner_at is None:
                attempt.runner_at = self.now + self._delay()
        elif isinstance(action, SetHosts):
            attempt = self.attempts[key]
            if attempt.written != dict(action.slots):
                attempt.written = dict(action.slots)
                attempt.read_at = self.now + self._delay()
        elif isinstance(action, SetBatch):
            self.attempts[key].batch = action.samples
        elif isinstance(action, StopAttempt):
            attempt = self.attempts.setdefault(key, FakeAttempt(job.spec.is_elastic, {}, 0, 0))
            attempt.order = action.how
            if not attempt.begun and not attempt.runner:
                attempt.ended = attempt.ended or AttemptFact(AttemptState.ENDED)
        self.settle()

    # --- what happens by itself --------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Carry out all due events."""
        for (name, _), attempt in self.attempts.items():
            if attempt.runner_at is not None and attempt.runner_at <= self.now:
                attempt.runner_at = None
                self._claim(attempt)
            if not attempt.runs:
                continue
            if attempt.elastic:
                self._follow_hosts(attempt)
            if attempt.order and attempt.runner and attempt.stops_at is None:
                attempt.stops_at = self.now + self._end_seconds
            if attempt.left <= 1e-9:
                self._end(attempt, attempt.code)
            elif attempt.stops_at is not None and attempt.stops_at <= self.now:
                if attempt.order == "suspend":
                    self.saved[name] = attempt.left
                self._end(attempt, 143)

    def _follow_hosts(self, attempt: FakeAttempt) -> None:
        """Read the file of hosts, start workers there at once, and make others leave with a delay."""
        if attempt.read_at is not None and attempt.read_at <= self.now:
            attempt.slots, attempt.read_at = dict(attempt.written), None
        leaving = {host for host, number in attempt.workers.items() if number > attempt.slots.get(host, 0)}
        for host, number in attempt.slots.items():
            attempt.workers[host] = max(number, attempt.workers.get(host, 0))
        if not leaving:
            attempt.left_at = None
        elif attempt.left_at is None:
            attempt.left_at = self.now + self._end_seconds
        if attempt.left_at is not None and attempt.left_at <= self.now:
            attempt.workers, attempt.left_at = dict(attempt.slots), None

    def _claim(self, attempt: FakeAttempt) -> None:
        if attempt.ended is not None or attempt.runner:
            return
        if attempt.begun and not attempt.elastic:
            attempt.ended = AttemptFact(AttemptState.ENDED)
        elif attempt.begun:
            attempt.runner = True
        elif attempt.order:
            attempt.ended = AttemptFact(AttemptState.ENDED)
        else:
            attempt.begun += 1
            attempt.runner = True
            attempt.workers = dict(attempt.slots)

    def _end(self, attempt: FakeAttempt, code: int | None) -> None:
        attempt.ended = AttemptFact(AttemptState.ENDED, code, bool(attempt.order))
        attempt.workers, attempt.runner = {}, False

    def next(self) -> float:
        """Return the time of the next event; infinity if there is none."""
        times = [attempt.runner_at for attempt in self.attempts.values() if attempt.runner_at is not None]
        for attempt in self.attempts.values():
            if attempt.runs:
                times += [at for at in (attempt.read_at, attempt.left_at) if at is not None]
            if attempt.runs and attempt.stops_at is not None:
                times.append(attempt.stops_at)
            elif attempt.runs:
                times.append(self.now + attempt.left / max(1, self._speed(attempt)))
        return min(times, default=float("inf"))

    @staticmethod
    def _speed(attempt: FakeAttempt) -> int:
        return count(attempt.workers) if attempt.elastic else count(attempt.slots)

    def pass_to(self, time: float) -> None:
        """Advance the time, in which jobs work."""
        for attempt in self.attempts.values():
            if attempt.runs:
                attempt.left -= (time - self.now) * self._speed(attempt)
        self.now = time
        self.settle()

    def kill_runner(self, name: str, number: int) -> None:
        """Kill a runner: a plain job ends with it, an elastic one continues."""
        attempt = self.attempts[name, number]
        if attempt.runner:
            attempt.runner = False
            attempt.stops_at = None
            if not attempt.elastic:
                attempt.ended = AttemptFact(AttemptState.ORPHANED)

    def used(self) -> dict[str, int]:
        """Return the number of used slots of each host."""
        used: dict[str, int] = {}
        for attempt in self.attempts.values():
            for host, number in (attempt.workers if attempt.elastic else attempt.slots).items():
                used[host] = used.get(host, 0) + (number if attempt.runs else 0)
        return used


class FakeDaemon:
    """The queue's daemon without its loop and its socket, on a fake world.

    Args:
        directory: the directory of its database.
        world: the world that it acts on.
        hosts: the queue's hosts.
        settings: the queue's settings.
        step: called between any two steps; may raise `Crash`.
    """

    def __init__(
        self,
        directory: Path,
        world: World,
        hosts: tuple[QueueHost, ...],
        settings: QueueSettings,
        step: Callable[[], None] = lambda: None,
    ) -> None:
        self.world = world
        self.step = step
        self._path = directory / "queue.db"
        self.standing: Standing | None = None
        self.policy: Policy | None = None
        """The policy that is used instead of the one in the settings."""
        self._open()
        self.state.set_hosts(hosts)
        self.state.configure(settings)

    def _open(self) -> None:
        self._store = QueueStore(self._path, durable=False)
        self.standing = None
        self.state = QueueState(self._store)

    def crash(self) -> None:
        """Lose everything in memory, and restart."""
        self._store.close()
        self._open()

    @property
    def review_at(self) -> float | None:
        """The time at which the policy wants to decide again."""
        return None if self.standing is None else self.standing.decision.review_at

    def close(self) -> None:
        self._store.close()

    def submit(self, name: str, requester: Requester = ANN, work: float = 10.0, code: int = 0, **spec: Any) -> None:
        """Submit a job, as a client that retries with the same key."""
        self.world.work[name] = work, code
        ask = Submit({"name": name, "command": ["true"], **spec}, {"A": "1"}, "/", f"key of {name}")
        self.ask(lambda: self.state.submit(ask, requester, self.world.now))

    def ask(self, request: Callable[[], object]) -> None:
        """Send a request, and repeat it if the daemon dies before it answers."""
        while True:
            try:
                self.step()
                request()
                self.step()
                return
            except Crash:
                self.crash()

    def change(self, verb: str, name: str, workers: int = 0, requester: Requester = ANN) -> None:
        self.step()
        self.state.change(verb, name, workers, requester, self.world.now)
        self.step()

    def turns(self) -> None:
        """Run turns until nothing changes at the present time."""
        for _ in range(200):
            before = (dict(self.state.jobs), self._shown())
            try:
                self.turn()
            except Crash:
                self.crash()
                continue
            if before == (self.state.jobs, self._shown()):
                return
        raise AssertionError("the queue does not come to rest")

    def _shown(self) -> list[tuple[Any, ...]]:
        return [
            (key, each.begun, each.runner, each.order, each.ended, dict(each.slots), dict(each.workers))
            for key, each in self.world.attempts.items()
        ]

    def turn(self) -> None:
        state, now = self.state, self.world.now
        facts = self.world.observe(state.jobs)
        self.step()
        users = sorted({(job.spec.queue, job.owner.name) for job in state.jobs.values()})
        policy = self.policy or make_policy(state.settings.policy, state.settings.rules(users))
        reports = reports_of(state.jobs, measured_by(state.jobs, facts, self.world.measured_before), state.hosts)
        after = turn(state.jobs, state.hosts, state.settings, facts, policy.decide, now, self.standing, reports)
        self.step()
        state.apply(after, facts, now)
        self.standing = after.standing
        self.step()
        for action in after.actions:
            self.world.carry_out(action, state.jobs)
            self.check()
            self.step()

    def until_over(self, most: float = 1e6) -> None:
        """Continue until all jobs are over, or wait for an event that never happens."""
        begun = self.world.now
        self.turns()
        while not all(job.phase.is_over or job.phase is Phase.SUSPENDED for job in self.state.jobs.values()):
            times = [self.world.next()]
            if self.review_at is not None and self.review_at > self.world.now:
                times.append(self.review_at)
            assert min(times) < begun + most, {name: job.phase for name, job in self.state.jobs.items()}
            self.world.pass_to(max(self.world.now, min(times)))
            self.check()
            self.turns()

    def check(self) -> None:
        """Check the invariants."""
        used, slots = self.world.used(), {host.name: host.slots for host in self.state.hosts}
        over = {host: number for host, number in used.items() if number > slots.get(host, 0)}
        assert not over, f"more workers than slots: {over}"
        held: dict[str, list[int]] = {}
        for job in self.state.jobs.values():
            for host, own in job.numbered.items():
                assert len(own.numbers) >= job.slots.get(host, 0), f"slots without numbers: {job}"
                held.setdefault(host, []).extend(own.numbers)
        for host, numbers in held.items():
            if len(numbers) <= slots.get(host, 0):
                assert len(set(numbers)) == len(numbers), f"slots of {host} that two have: {numbers}"
        twice = [key for key, attempt in self.world.attempts.items() if attempt.begun > 1]
        assert not twice, f"begun twice: {twice}"
        runs: dict[str, int] = {}
        for (name, _), attempt in self.world.attempts.items():
            runs[name] = runs.get(name, 0) + attempt.runs
        assert all(number <= 1 for number in runs.values()), f"two attempts at once: {runs}"


def hosts(text: str) -> tuple[QueueHost, ...]:
    """Return hosts such as `h1:2,h2:2/fast`."""
    return parse_queue_hosts(text)


def refused(request: Callable[[], object]) -> str:
    """Return the message with which a request is refused."""
    try:
        request()
    except JobError as error:
        return f"{type(error).__name__}: {error.message} | {error.hint}"
    raise AssertionError("it was not refused")


def seeds(first: int, many: int) -> Iterator[random.Random]:
    for seed in range(first, first + many):
        yield random.Random(seed)

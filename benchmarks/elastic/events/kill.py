"""A worker is killed with SIGKILL: a tiny one, and one with much memory, which the kernel takes long to free."""

from __future__ import annotations

import signal

from benchmarks.elastic.bench import Bench, Trial
from benchmarks.elastic.events.base import COUNT, LOST, NEXT_STEP, Event, Loss, Measure
from benchmarks.elastic.jobs import Job, Setting, send
from benchmarks.elastic.peers import Peer

_SECONDS = 60.0
_BALLAST_BYTES = 4 << 30
_MEASURES = (Measure(NEXT_STEP, compared=True), Measure(LOST, COUNT))


def _kill(job: Job, victim: int, world: frozenset[int]) -> Trial:
    printed = job.printed()
    when = send(victim, signal.SIGKILL)
    return Loss(job, when, victim, world - {victim}, printed).wait(_SECONDS)


def _kill_any(bench: Bench, peer: Peer) -> list[Trial]:
    def take(job: Job, world: frozenset[int]) -> Trial:
        return _kill(job, bench.chance.choice(sorted(world)), world)

    return bench.repeat("kill", peer, Setting(), take)


def _kill_large(bench: Bench, peer: Peer) -> list[Trial]:
    def take(job: Job, world: frozenset[int]) -> Trial:
        return _kill(job, job.holder_of_ballast(world), world)

    return bench.repeat("kill-large", peer, Setting(ballast_bytes=_BALLAST_BYTES), take)


KILL = Event(
    name="kill",
    title="kill -9 of a worker, to the first step without it",
    goal="50 ms / 250 ms, no step lost",
    measures=_MEASURES,
    take=_kill_any,
)

KILL_LARGE = Event(
    name="kill-large",
    title=f"kill -9 of a worker of {_BALLAST_BYTES >> 30} GB, to the first step without it",
    goal="50 ms / 250 ms, no step lost",
    measures=_MEASURES,
    take=_kill_large,
)

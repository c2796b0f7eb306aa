"""The process that knows the members of the world is killed: farandole's launcher, torchft's lighthouse, torchrun."""

from __future__ import annotations

import signal

from benchmarks.elastic.bench import Bench, Trial
from benchmarks.elastic.events.base import Event, Measure
from benchmarks.elastic.jobs import Job, Setting, is_alive, send
from benchmarks.elastic.peers import Peer
from benchmarks.elastic.records import gaps

_SECONDS = 4.0
_BEFORE, _AFTER, _ATTACH = "longest step before", "longest step after", "taken over again after"


def _kill_coordinator(job: Job, world: frozenset[int]) -> Trial:
    job.wait(_SECONDS)
    printed = job.printed()
    when = send(job.coordinator(), signal.SIGKILL)
    job.wait(_SECONDS)
    window = int(_SECONDS * 1e9)
    before, after = (max(gaps(job.steps(begin), world, begin, begin + window)) for begin in (when - window, when))
    values = {_BEFORE: before, _AFTER: after}
    if not all(map(is_alive, world)):
        return Trial("workers ended", values, job.last_words(printed))
    if after > _SECONDS / 2:
        return Trial("workers stand still", values, job.last_words(printed))
    took = job.attach()
    if took is None:
        return Trial("training went on, without a launcher for good", values)
    return Trial("training went on", {**values, _ATTACH: took})


def _take(bench: Bench, peer: Peer) -> list[Trial]:
    return bench.repeat("launcher", peer, Setting(), _kill_coordinator, reuse=False)


LAUNCHER = Event(
    name="launcher",
    title="kill -9 of the launcher",
    goal="no step disturbed; taken over again within 1 s",
    measures=(Measure(_BEFORE), Measure(_AFTER, compared=True), Measure(_ATTACH)),
    take=_take,
)

"""The job's daemon is killed: alone, so that another one takes over; or with all of the launcher, until `--attach`."""

from __future__ import annotations

import signal
import time

from benchmarks.elastic.bench import Bench, Trial
from benchmarks.elastic.events.base import Event, Measure
from benchmarks.elastic.jobs import Job, Setting, is_alive, send
from benchmarks.elastic.peers import Peer
from benchmarks.elastic.records import gaps

_SECONDS = 4.0
_MOST_SECONDS = 10.0
_ALONE_SECONDS = 1.0
_BEFORE, _AFTER = "longest step before", "longest step after"
_FOLLOWED, _ATTACHED = "another one after", "taken over after the call"


def _kill_daemon(job: Job, world: frozenset[int]) -> Trial:
    job.wait(_SECONDS)
    printed = job.printed()
    when = send(job.daemon(), signal.SIGKILL)
    if not job.wait_until(lambda: job.is_taken_over(printed), _MOST_SECONDS):
        return Trial("nobody took over", {}, job.last_words(printed))
    took = (time.monotonic_ns() - when) / 1e9
    return _disturbed(job, world, when, printed, {_FOLLOWED: took})


def _kill_all(job: Job, world: frozenset[int]) -> Trial:
    job.wait(_SECONDS)
    printed = job.printed()
    when = max(send(pid, signal.SIGKILL) for pid in job.launcher())
    job.wait(_ALONE_SECONDS)
    took = job.attach()
    assert took is not None
    return _disturbed(job, world, when, printed, {_ATTACHED: took})


def _disturbed(job: Job, world: frozenset[int], when: int, printed: int, took: dict[str, float]) -> Trial:
    """Return how much the workers were disturbed."""
    job.wait(max(0.0, _SECONDS - (time.monotonic_ns() - when) / 1e9))
    window = int(_SECONDS * 1e9)
    before, after = (max(gaps(job.steps(begin), world, begin, begin + window)) for begin in (when - window, when))
    values = {_BEFORE: before, _AFTER: after, **took}
    if not all(map(is_alive, world)):
        return Trial("workers ended", values, job.last_words(printed))
    return Trial("training went on", values)


def _take_daemon(bench: Bench, peer: Peer) -> list[Trial]:
    return bench.repeat("daemon", peer, Setting(), _kill_daemon)


def _take_all(bench: Bench, peer: Peer) -> list[Trial]:
    return bench.repeat("attach", peer, Setting(), _kill_all)


DAEMON = Event(
    name="daemon",
    title="kill -9 of the process behind the launcher, which has the job",
    goal="no step disturbed",
    measures=(Measure(_BEFORE), Measure(_AFTER), Measure(_FOLLOWED)),
    take=_take_daemon,
)

ATTACH = Event(
    name="attach",
    title="kill -9 of all processes of the launcher; then farandole run --attach",
    goal="no step disturbed; taken over within 1 s",
    measures=(Measure(_BEFORE), Measure(_AFTER), Measure(_ATTACHED)),
    take=_take_all,
)

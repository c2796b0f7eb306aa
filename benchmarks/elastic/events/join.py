"""A newcomer joins three workers, and gets their state."""

from __future__ import annotations

import time

from benchmarks.elastic.bench import Trial
from benchmarks.elastic.events.base import SURVIVED, Event, Measure
from benchmarks.elastic.jobs import Job, Setting, is_alive
from benchmarks.elastic.records import committed, longest_pause, median_step

_STATE_BYTES = 16 << 20
_SETTING = Setting(size=3, most=4, state_bytes=_STATE_BYTES)
_SECONDS = 90.0
_BEFORE, _AFTER = 1.0, 1.0
_LONGEST, _JOINED = "longest step, above the median", "in the world after"


def _join(job: Job, world: frozenset[int]) -> Trial:
    begin, printed = time.monotonic_ns(), job.printed()
    before = begin - int(_BEFORE * 1e9)
    job.watch()
    usual = median_step(job.steps(before), world, before, begin)
    job.add_worker()

    def full() -> int | None:
        """Return when a newcomer had done its first step in the full world."""
        steps = (step for step in committed(job.steps(begin)) if step.pid not in world)
        return min((step.time for step in steps if step.size == _SETTING.most), default=None)

    job.wait_until(full, _SECONDS)
    joined = full()
    crashed = not any(map(is_alive, world))
    outcome, detail = ("all began again", job.last_words(printed)) if crashed else (SURVIVED, "")
    if joined is None:
        return Trial(f"no world of {_SETTING.most} within {_SECONDS:.0f} s", detail=detail or job.last_words(printed))
    job.wait(_AFTER)
    longest = longest_pause(job.steps(begin), world, begin, joined + int(_AFTER * 1e9))
    return Trial(outcome, {_LONGEST: longest - usual, _JOINED: (joined - begin) / 1e9}, detail)


JOIN = Event(
    name="join",
    title=f"a newcomer joins, {_STATE_BYTES >> 20} MB of state",
    goal="+200 ms at most",
    measures=(Measure(_LONGEST, compared=True), Measure(_JOINED)),
    take=lambda bench, peer: bench.repeat("join", peer, _SETTING, _join, reuse=False),
)

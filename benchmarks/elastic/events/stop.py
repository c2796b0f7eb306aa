"""A worker is stopped with SIGSTOP, which makes it as silent as a cut network would; later it is continued."""

from __future__ import annotations

import signal

from benchmarks.elastic.bench import Bench, Trial
from benchmarks.elastic.events.base import COUNT, LOST, NEXT_STEP, Event, Loss, Measure
from benchmarks.elastic.jobs import Job, Setting, is_alive, send
from benchmarks.elastic.peers import Peer
from benchmarks.elastic.records import committed

_SECONDS = 30.0
_SECONDS_AFTER = 10.0


def _stop(job: Job, victim: int, world: frozenset[int]) -> Trial:
    printed = job.printed()
    when = send(victim, signal.SIGSTOP)
    survivors = world - {victim}
    trial = Loss(job, when, victim, survivors, printed).wait(_SECONDS)
    trial.outcome += f"; {_continue(job, victim, survivors)}"
    return trial


def _continue(job: Job, victim: int, survivors: frozenset[int]) -> str:
    """Continue the stopped worker, and return what happens to it."""
    if not is_alive(victim):
        return "it had been killed"
    when = send(victim, signal.SIGCONT)

    def steps(pids: frozenset[int]) -> list[int]:
        return [step.size for step in committed(job.steps(when)) if step.pid in pids]

    job.wait_until(lambda: not is_alive(victim) or len(steps(frozenset({victim}))) > 1, _SECONDS_AFTER)
    if not is_alive(victim):
        return "continued, it ended"
    own = steps(frozenset({victim}))
    if not own:
        return "continued, it made no step"
    return (
        "continued, it trained alone"
        if own[-1] == 1 and steps(survivors)
        else "continued, it trained on with the others"
    )


def _take(bench: Bench, peer: Peer) -> list[Trial]:
    def take(job: Job, world: frozenset[int]) -> Trial:
        return _stop(job, bench.chance.choice(sorted(world)), world)

    return bench.repeat("stop", peer, Setting(), take)


STOP = Event(
    name="stop",
    title="SIGSTOP of a worker, to the first step without it",
    goal="2 s",
    measures=(Measure(NEXT_STEP, compared=True), Measure(LOST, COUNT)),
    take=_take,
)

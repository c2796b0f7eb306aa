"""Nothing happens: the cost of being elastic. An elastic job and a plain one of the same library take turns."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache

from tqdm import tqdm

from benchmarks.elastic.bench import Bench, Trial
from benchmarks.elastic.events.base import SHARE, Event, Measure
from benchmarks.elastic.jobs import Job, JobFailed, Setting, running
from benchmarks.elastic.peers import Peer
from benchmarks.elastic.records import committed, step_seconds
from benchmarks.peers.base import ROOT
from benchmarks.topology import cores

_STEP_SECONDS = 0.02
_STEPS_OF_A_TURN = 20
_TURNS_OF_A_PAIR = 10
_TURN_SECONDS = 60.0
_ELASTIC, _PLAIN, _COST = "elastic step", "plain step", "cost"
_TIME_A_UNIT = """
import timeit
from benchmarks.computation import compute
compute(10)
print(min(timeit.repeat(lambda: compute(10), number=3, repeat=7)) / 30)
"""


@cache
def _units(size: int) -> int:
    """Return the units of computation with which a step of `size` workers takes about 20 ms on this machine's cores."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = (sys.executable, "-c", _TIME_A_UNIT)
    found = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=60)
    share_of_a_core = min(1.0, cores() / size)
    return max(1, round(_STEP_SECONDS * share_of_a_core / float(found.stdout)))


def _turn(job: Job, number: int) -> float:
    """Let a job make the steps of one turn, and return the median seconds of one."""
    begin = number * _STEPS_OF_A_TURN
    end = begin + _STEPS_OF_A_TURN
    started = time.monotonic_ns()
    job.allow(end)

    def finished() -> bool:
        return sum(step.number == end - 1 for step in committed(job.steps(started))) == job.setting.size

    if not job.wait_until(finished, _TURN_SECONDS):
        raise JobFailed(f"{_STEPS_OF_A_TURN} steps took more than {_TURN_SECONDS:.0f} s{job.last_words()}")
    return step_seconds(job.steps(started), range(begin, end))


def _take(bench: Bench, peer: Peer) -> list[Trial]:
    units = _units(Setting().size)
    trials: list[Trial] = []
    with tqdm(total=bench.repetitions, desc=f"idle: {peer.name}", file=sys.stderr, disable=None) as bar:
        while len(trials) < bench.repetitions:
            # Two jobs of the same script differ, for as long as they live, by more than what is measured.
            elastic, plain = (peer.job(Setting(units=units, elastic=way), bench.make_folder()) for way in (True, False))
            turns = min(_TURNS_OF_A_PAIR, bench.repetitions - len(trials))
            try:
                for trial in _compare(elastic, plain, turns):
                    trials.append(trial)
                    bar.update()
            except JobFailed as error:
                trials.append(Trial("failed", detail=f": {error}"))
                bench.say(f"    {peer.name}, idle: {error}")
                break
    return trials


def _compare(elastic: Job, plain: Job, turns: int) -> Iterator[Trial]:
    for job in (elastic, plain):
        job.allow(0)
    # One job waits at its gate while the other computes.
    with running(elastic), running(plain):
        for job in (elastic, plain):
            _turn(job, 0)
        for turn in range(1, turns + 1):
            # No job always follows the same one.
            jobs = (elastic, plain) if turn % 2 else (plain, elastic)
            took = {job: _turn(job, turn) for job in jobs}
            values = {_ELASTIC: took[elastic], _PLAIN: took[plain], _COST: took[elastic] / took[plain] - 1}
            yield Trial("measured", values)


IDLE = Event(
    name="idle",
    title=f"nothing happens; a step of about {_STEP_SECONDS * 1e3:.0f} ms",
    goal="1%",
    measures=(Measure(_ELASTIC, compared=True), Measure(_PLAIN), Measure(_COST, SHARE)),
    take=_take,
)

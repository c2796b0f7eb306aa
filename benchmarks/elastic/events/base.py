"""`Event`, and what all events share that lose a worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.elastic.bench import Bench, Trial
from benchmarks.elastic.jobs import Job, is_alive
from benchmarks.elastic.peers import Peer
from benchmarks.elastic.records import Step, lost_steps, next_step, next_step_of_anyone

SECONDS, COUNT, SHARE = "seconds", "count", "share"

NEXT_STEP, LOST = "next step", "steps lost"
SURVIVED = "survivors went on"
_BEFORE = 1_000_000_000


@dataclass(frozen=True)
class Measure:
    """One number of a trial.

    Attributes:
        name: its key in `Trial.values`, and the heading of its column.
        unit: `SECONDS`, `COUNT` or `SHARE`.
        compared: whether another column has its ratio to farandole's median.
    """

    name: str
    unit: str = SECONDS
    compared: bool = False


@dataclass(frozen=True)
class Event:
    """Something that happens to a job.

    Attributes:
        name: its name on the command line.
        title: what is measured, in one line.
        goal: farandole's goal, as median / worst.
        measures: the columns.
        take: a function that makes all trials with one library.
    """

    name: str
    title: str
    goal: str
    measures: tuple[Measure, ...]
    take: Callable[[Bench, Peer], list[Trial]]


@dataclass(frozen=True)
class Loss:
    """A worker is lost; the others are to go on.

    Attributes:
        job: the job that the worker belongs to.
        when: the time of the loss, in nanoseconds.
        victim: the process of the lost worker.
        survivors: the processes of the other workers.
        printed: the number of bytes that the job had printed by then.
    """

    job: Job
    when: int
    victim: int
    survivors: frozenset[int]
    printed: int

    def steps(self) -> list[Step]:
        """Return the steps of all workers from shortly before on."""
        return self.job.steps(self.when - _BEFORE)

    def first_step(self) -> Step | None:
        """Return the first step without the victim: of a survivor or, if none lives, of a worker started since."""
        steps = self.steps()
        first = next_step(steps, self.when, self.victim, self.survivors)
        if first is None and not any(map(is_alive, self.survivors)):
            return next_step_of_anyone(steps, self.when, self.survivors | {self.victim})
        return first

    def wait(self, seconds: float) -> Trial:
        """Wait for the first step without the victim, and return what happened to the survivors."""
        self.job.wait_until(lambda: self.first_step() is not None, seconds)
        crashed = sum(not is_alive(pid) for pid in self.survivors)
        outcome, detail = self._outcome(crashed), self.job.last_words(self.printed) if crashed else ""
        first = self.first_step()
        if first is None:
            what = f"no step within {seconds:.0f} s"
            return Trial(f"{what}, {outcome}" if crashed else what, detail=detail)
        lost = lost_steps(self.steps(), self.when, first, self.survivors)
        return Trial(outcome, {NEXT_STEP: (first.time - self.when) / 1e9, LOST: lost}, detail)

    def _outcome(self, crashed: int) -> str:
        if crashed == len(self.survivors):
            return "all survivors ended"
        return f"{crashed} of {len(self.survivors)} survivors ended" if crashed else SURVIVED

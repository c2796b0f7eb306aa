"""What an event is, and what the losses of a worker share."""

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
        name: in `Trial.values`, and over its column.
        unit: `SECONDS`, `COUNT` or `SHARE`.
        compared: whether a column says how many times farandole's median it is.
    """

    name: str
    unit: str = SECONDS
    compared: bool = False


@dataclass(frozen=True)
class Event:
    """Something that happens to a job.

    Attributes:
        name: how it is asked for.
        title: what is measured, in one line.
        goal: of farandole, median / worst.
        measures: the columns.
        take: does it to one library as often as the bench says.
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
        job: whose worker it is.
        when: it happened, in nanoseconds.
        victim: its process.
        survivors: those of the others.
        printed: what the job had printed by then, in bytes.
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
        """Wait for the first step without the victim, and say what became of the survivors."""
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

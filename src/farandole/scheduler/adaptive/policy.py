"""The adaptive policy: all jobs are sized together, again and again, so that they get on best.

For each job and each size it may be given, the goodput is predicted (`goodput`), and lessened by what a restart costs.
The allocation maximises the sum over jobs of

    value = (1 / alone)^favour * speedup^power        power, favour > 0

with the predicted `speedup` over one slot of the best type, and `alone`, the seconds that the job still takes with that
one slot. A power below 1 makes the sum fair: the first slots of a job count more than further ones, as in Pollux
(Qiao et al., OSDI '21) and Sia (Jayaram Subramanya et al., SOSP '23), which use powers below 0. `favour` prefers jobs
that are nearly done, as the shortest remaining time does: with power = favour = 1 the value is the rate at which jobs
end. What remains is predicted from finished jobs of the same application or, where there are none, taken to be as much
as has been done, which holds for run times with a Pareto tail, and is at least `prior`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from farandole.scheduler.adaptive.candidates import Candidate, exactly, sizes
from farandole.scheduler.adaptive.goodput import GoodputModel
from farandole.scheduler.adaptive.packing import Sized, pack_all
from farandole.scheduler.adaptive.solve import Choice, solve
from farandole.scheduler.cluster import Cluster
from farandole.scheduler.job import Decision, JobView
from farandole.scheduler.rules import Rules

_LEAST_FACTOR = 0.02
"""What is left of a goodput at least, however much a restart costs."""
_LEAST_PART = 0.01
"""The part of a job's progress that is taken to remain at least, when it has got further than was predicted."""


@dataclass
class Adaptive:
    """Sizes all jobs together, by their goodput.

    The models of jobs are kept from one decision to the next, because fitting them takes time; they follow from the
    reports alone, so that decisions do not depend on what was asked before.
    """

    rules: Rules = field(default_factory=Rules)
    power: float = 0.5
    """How much a speed-up counts."""
    favour: float = 0.5
    """How much jobs with little left are preferred."""
    horizon: float = 1200.0
    """Seconds in which the cost of a restart must come in again, if the job does not end before."""
    prior: float = 600.0
    """Seconds with one slot that a job is taken to need at least."""
    resizes: bool = True
    """False: jobs get what they asked for, and only order, place and time are chosen."""
    _models: dict[str, GoodputModel] = field(default_factory=dict, repr=False)

    def decide(self, cluster: Cluster, jobs: Sequence[JobView], now: float) -> Decision:
        """Return who gets what, and why. The order in which the jobs come does not matter."""
        jobs = sorted(jobs, key=lambda job: (job.submitted, job.name))
        self._models = {job.name: self._model(job) for job in jobs if job.report is not None}
        sized = [_staying(job, cluster) for job in jobs if job.allocation is not None and not job.preemptible]
        staying = {one.job.name for one in sized}
        free = dict(cluster.slots_of)
        for one in sized:
            free[one.candidate.type] -= one.candidate.slots
        offers = [
            (index, job, candidate, speedup, value)
            for index, job in enumerate(jobs)
            if job.name not in staying
            for candidate, speedup, value in self._values(cluster, job, now)
        ]
        chosen = solve([Choice(index, one.type, one.slots, value) for index, _, one, _, value in offers], free)
        sized += [Sized(offers[at][1], offers[at][2]) for at in chosen]
        reasons = {job.name: f"waits: the {cluster.slots} slots do more for other jobs" for job in jobs}
        reasons |= {one.job.name: f"has {one.candidate.slots} slots of {one.candidate.type}" for one in sized}
        for at in chosen:
            reasons[offers[at][1].name] += f": {offers[at][3]:.1f} times as fast as one"
        return Decision(pack_all(cluster, sized), reasons, now + self.rules.round)

    def _model(self, job: JobView) -> GoodputModel:
        assert job.report is not None
        before = self._models.get(job.name)
        if before is not None and before.report is job.report:
            return before
        return GoodputModel(job.report, before)

    def _values(self, cluster: Cluster, job: JobView, now: float) -> Iterator[tuple[Candidate, float, float]]:
        """Yield the sizes that a job may be given, its speed-up, and what that is worth."""
        rates = {candidate: self._rate(job, candidate) for candidate in _candidates(cluster, job)}
        rates = {candidate: rate for candidate, rate in rates.items() if rate > 0}
        if not rates:
            return
        one = max(self._rate(job, Candidate(type_, 1, 1)) for type_ in cluster.types) or max(rates.values())
        remaining = self._remaining(job, one, now)
        preference = float((remaining / one) ** -self.favour)
        for candidate, rate in rates.items():
            lasts = min(self.horizon, remaining / rate)
            cost = _restart_cost(job, candidate, now)
            factor = lasts / (lasts + cost) if lasts < self.horizon - cost else 1 - cost / self.horizon
            speedup = rate / one
            worth = (speedup * max(factor, _LEAST_FACTOR)) ** self.power
            yield candidate, speedup, preference * worth

    def _rate(self, job: JobView, candidate: Candidate) -> float:
        """Return the progress in a second; of a job that reports nothing, in slot-seconds."""
        if job.report is None:
            return float(candidate.slots)
        return self._models[job.name].goodput(candidate.type, candidate.nodes, candidate.slots, job.batch)

    def _remaining(self, job: JobView, one: float, now: float) -> float:
        """Return the progress that a job still has to make."""
        if job.report is None:
            seconds = job.remaining(now)
            return max(job.served(now) if seconds is None else seconds * job.slots, 1.0)
        done = job.report.progress
        if job.total_progress:
            return max(job.total_progress - done, job.total_progress * _LEAST_PART)
        return max(done, one * self.prior)


def _candidates(cluster: Cluster, job: JobView) -> Iterator[Candidate]:
    """Yield the sizes that a job may be given: at most twice as many as it has run with, so that its model holds."""
    for type_ in cluster.types:
        if not job.elastic:
            yield from exactly(cluster, type_, job.slots)
            continue
        largest = min(job.max_slots, max(1, job.min_slots, 2 * job.largest_run))
        yield from (one for one in sizes(cluster, type_, largest) if one.slots >= job.min_slots)


def _staying(job: JobView, cluster: Cluster) -> Sized:
    """Return the present size of a job that must not be suspended."""
    had = job.allocation
    assert had is not None
    return Sized(job, Candidate(had.type, len(had.parts), had.slots))


def _restart_cost(job: JobView, candidate: Candidate, now: float) -> float:
    """Return the seconds without progress that a size costs from now on."""
    had = job.allocation
    if had is not None and (had.type, had.slots) == (candidate.type, candidate.slots):
        return max(0.0, job.restarting_until - now)
    return job.restart_cost

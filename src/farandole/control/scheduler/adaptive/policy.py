"""The adaptive policy: all jobs are sized together, periodically, to maximise their progress.

For each job and each candidate size, the goodput is predicted (`goodput`), and reduced by the cost of a restart. The
allocation maximises the sum over jobs of

    value = (1 / alone)^favour * speedup^power        power, favour > 0

with the predicted `speedup` over one slot of the best type, and `alone`, the remaining seconds of the job with that one
slot. A power below 1 makes the sum fair: the first slots of a job count more than further ones, as in Pollux (Qiao et
al., OSDI '21) and Sia (Jayaram Subramanya et al., SOSP '23), which use powers below 0. `favour` prefers jobs that are
nearly done, like shortest remaining time first: with power = favour = 1 the value is the rate at which jobs end. The
remaining progress is predicted from finished jobs of the same application. Without such jobs it is assumed to equal
the progress so far, which holds for run times with a Pareto tail, and to be at least `prior`.

Priorities, weights of queues and deadlines multiply the value (`weights`); limits and quotas bound the sum (`shares`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from farandole.control.scheduler.adaptive.candidates import Candidate, exactly, sizes
from farandole.control.scheduler.adaptive.goodput import GoodputModel
from farandole.control.scheduler.adaptive.overdue import reserve
from farandole.control.scheduler.adaptive.packing import Sized, place_all
from farandole.control.scheduler.adaptive.shares import Account, Claim, Row, borrows, rows_of, used_by, why_waits
from farandole.control.scheduler.adaptive.solve import Choice, solve
from farandole.control.scheduler.adaptive.weights import by_deadline, weights
from farandole.control.scheduler.cluster import Cluster
from farandole.control.scheduler.job import Decision, PolicyJob
from farandole.control.scheduler.jobs import by_submission
from farandole.control.scheduler.placement import pack
from farandole.control.scheduler.placement.by_node import Place
from farandole.control.scheduler.room import why_no_size, why_too_large
from farandole.control.scheduler.rules import Rules

_GROWTH = 4
"""Maximum ratio of a job's slots to the largest number that it has run with: each step costs a restart."""
_LEAST_FACTOR = 0.02
"""Smallest factor by which the cost of a restart reduces a goodput."""
_LEAST_PART = 0.01
"""Fraction of a job's progress that is assumed to remain when it has got further than predicted."""


class Offer(NamedTuple):
    """A size that a job may get: the choice for the solver, the layout, and the speed-up over one slot."""

    choice: Choice
    candidate: Candidate
    speedup: float


@dataclass
class Adaptive:
    """The policy that sizes all jobs together, by their goodput.

    The models of jobs are cached between decisions, because fitting them takes time. They depend only on the reports,
    so decisions do not depend on earlier decisions.
    """

    rules: Rules = field(default_factory=Rules)
    power: float = 0.5
    """Exponent of the speed-up."""
    favour: float = 0.15
    """Exponent of the preference for jobs with little left to do."""
    horizon: float = 1200.0
    """Seconds for which an allocation is expected to last, for jobs that have not been restarted yet."""
    prior: float = 600.0
    """Smallest expected run time of a job with one slot, in seconds."""
    place: Place = pack.place
    """The placement. Speeds are predicted for packed slots."""
    in_order: bool = False
    """Whether a job has to wait as long as an earlier job waits."""
    resizes: bool = True
    _models: dict[str, GoodputModel] = field(default_factory=dict, repr=False)

    def decide(self, cluster: Cluster, jobs: Sequence[PolicyJob], now: float) -> Decision:
        """Return the slots of each job, with reasons. The order of `jobs` does not matter."""
        jobs = sorted(jobs, key=by_submission)
        self._models = {job.name: self._model(job) for job in jobs if job.report is not None}
        counts = weights(jobs, now, self.rules)
        offers = [
            Offer(Choice(index, one.type, one.slots, counts[index] * value), one, speedup)
            for index, job in enumerate(jobs)
            if job.preemptible or job.elastic or job.allocation is None
            for one, speedup, value in self._values(cluster, job, now)
        ]
        offered = {jobs[offer.choice.job].name for offer in offers}
        sizes_of = {(offer.choice.job, offer.choice.type, offer.choice.slots) for offer in offers}
        sized = [
            _staying(job) for index, job in enumerate(jobs) if _is_kept(job) and not _may_keep(index, job, sizes_of)
        ]
        staying = {one.job.name for one in sized}
        offers = [offer for offer in offers if jobs[offer.choice.job].name not in staying]
        free = dict(cluster.slots_of)
        for one in sized:
            free[one.candidate.type] -= one.candidate.slots
        rows = rows_of(self.rules, jobs, _claims(jobs, offers), cluster.slots)
        kept = frozenset(index for index, job in enumerate(jobs) if _is_kept(job) and job.name not in staying)
        asked = [index for index, job in enumerate(jobs) if job.name in offered and job.name not in staying]
        chosen = self._choose_overdue(jobs, offers, free, asked, rows, kept, now)
        sized += [Sized(jobs[offer.choice.job], offer.candidate) for offer in chosen]
        speedups = {jobs[offer.choice.job].name: offer.speedup for offer in chosen}
        reasons = self._reasons(cluster, jobs, sized, speedups, offered)
        placed = place_all(cluster, sized, self.place)
        return Decision(placed, reasons, now + self.rules.round, self._batches(sized))

    def _choose_overdue(
        self,
        jobs: Sequence[PolicyJob],
        offers: Sequence[Offer],
        free: dict[str, int],
        asked: Sequence[int],
        rows: Sequence[Row],
        kept: frozenset[int],
        now: float,
    ) -> list[Offer]:
        """Return the best offers in which overdue jobs get slots, if limits and quotas allow it."""
        left, account = dict(free), Account(rows)
        for index in kept:
            had = jobs[index].allocation
            if had is not None:
                left[had.type] -= had.slots
                account.add(index, had.slots)
        reserved = reserve(jobs, [offer.choice for offer in offers], left, account, now, self.rules)
        allowed = [offer for offer in offers if reserved.allows(offer.choice, jobs[offer.choice.job])]
        return self._choose(allowed, free, asked, rows, kept | reserved.must)

    def _choose(
        self,
        offers: Sequence[Offer],
        free: dict[str, int],
        jobs: Sequence[int],
        rows: Sequence[Row],
        kept: frozenset[int],
    ) -> list[Offer]:
        """Return the best offers, at most one for each job in `jobs`, which are in the order of submission."""

        def best(among: Sequence[Offer], must: frozenset[int], limits: Sequence[Row]) -> list[Offer]:
            return [among[at] for at in solve([offer.choice for offer in among], free, limits, must)]

        chosen, must, held = best(offers, kept, rows), kept, set[tuple[int, ...]]()
        while self.in_order:
            served = {offer.choice.job for offer in chosen}
            last = max(served - kept, default=-1)
            waits = [job for job in jobs if job < last and job not in served]
            passed = {job for job in waits if _row_numbers(job, rows) in held}
            first = next((job for job in waits if job not in passed), None)
            if first is None:
                break
            before = {job for job in jobs if job <= first and job not in passed} | kept
            until = [offer for offer in offers if offer.choice.job in before]
            if any(offer.choice.job == first for offer in best(until, must, rows)):
                must |= {first}
            elif rows and any(offer.choice.job == first for offer in best(until, must, ())):
                held.add(_row_numbers(first, rows))  # A limit or quota blocks it, not missing slots: others may pass.
                continue
            else:
                offers = [offer for offer in until if offer.choice.job != first]
            chosen = best(offers, must, rows)
        return chosen

    def _batches(self, sized: Sequence[Sized]) -> dict[str, int]:
        """Return the batch size of each job with an adaptive batch, once its noise is known."""
        batches = {}
        for job, (type_, nodes, workers) in sized:
            if job.report is not None and job.report.noise is not None and job.batch is None:
                best = self._models[job.name].best(type_, nodes, workers)
                if best is not None:
                    batches[job.name] = best.local * (best.accumulated + 1) * workers
        return batches

    def _reasons(
        self,
        cluster: Cluster,
        jobs: Sequence[PolicyJob],
        sized: Sequence[Sized],
        speedups: Mapping[str, float],
        offered: Collection[str],
    ) -> dict[str, str]:
        """Return a sentence for each job; `offered` are the names of the jobs that have candidate sizes."""
        rules = self.rules
        used = used_by([(one.job, one.candidate.slots) for one in sized], rules)
        highest = max((one.job.priority for one in sized), default=0)
        reasons = {}
        for job in jobs:
            others = "others, some of higher priority" if job.priority < highest else "other jobs"
            otherwise = f"the {cluster.slots} slots are worth more to {others}"
            reasons[job.name] = f"waits: {why_waits(job, used, rules) or otherwise}"
            if job.name not in offered:
                reasons[job.name] = self._why_no_size(job, cluster)
        for job, candidate in sized:
            reasons[job.name] = f"has {candidate.slots} slots of {candidate.type}"
            if job.name in speedups:
                reasons[job.name] += f": {speedups[job.name]:.1f} times as fast as one"
                if job.report is not None and job.report.measured and candidate.type not in job.report.measured:
                    tried = ", ".join(job.report.measured)
                    reasons[job.name] += f" (predicted: it has run only on {tried} so far)"
            if beyond := borrows(job.queue, used, rules):
                reasons[job.name] += f"; {beyond}"
        return reasons

    def _model(self, job: PolicyJob) -> GoodputModel:
        assert job.report is not None
        before = self._models.get(job.name)
        if before is not None and before.report is job.report and before.known is job.known:
            return before
        return GoodputModel(job.report, before, job.known)

    def _values(self, cluster: Cluster, job: PolicyJob, now: float) -> Iterator[tuple[Candidate, float, float]]:
        """Yield the candidate sizes of a job, each with its speed-up and value."""
        rates = self._rates(cluster, job, _candidates(cluster, job))
        if not rates:
            return
        one = max(
            self._rates(cluster, job, (sizes(cluster, type_, 1)[0] for type_ in cluster.types)).values(), default=0.0
        )
        one = one or max(rates.values())
        remaining = self._remaining(job, one, now)
        preference = float((remaining / one) ** -self.favour)
        ends = [now + _restart_cost(job, candidate, now) + remaining / rate for candidate, rate in rates.items()]
        urgent = by_deadline(ends, job.deadline, self.horizon)
        # The cost of a restart must pay off before the next one. A job that was restarted often will be again.
        until = (self.horizon + job.ran(now)) / (1 + job.account.restarts)
        for (candidate, rate), factor_of_deadline in zip(rates.items(), urgent, strict=True):
            lasts = min(until, remaining / rate)
            cost = _restart_cost(job, candidate, now)
            factor = lasts / (lasts + cost) if lasts < until - cost else 1 - cost / until
            speedup = rate / one
            worth = (speedup * max(factor, _LEAST_FACTOR)) ** self.power
            yield candidate, speedup, preference * worth * factor_of_deadline

    def _rates(self, cluster: Cluster, job: PolicyJob, candidates: Iterable[Candidate]) -> dict[Candidate, float]:
        """Return the progress per second of each candidate where it is above 0; without a report, in slot-seconds."""
        if job.report is None:
            return {candidate: float(candidate.slots) for candidate in candidates}
        rates: dict[Candidate, float] = {}
        asked = list(candidates)
        for type_ in cluster.types:
            mine = [candidate for candidate in asked if candidate.type == type_]
            layouts = [(candidate.nodes, candidate.slots) for candidate in mine]
            if mine:
                rates |= zip(mine, self._models[job.name].goodputs(type_, layouts, job.batch), strict=True)
        return {candidate: rate for candidate, rate in rates.items() if rate > 0}

    def _why_no_size(self, job: PolicyJob, cluster: Cluster) -> str:
        """Return why a job has no candidate size."""

        def fits(other: Cluster) -> bool:
            return bool(self._rates(other, job, _candidates(other, job)))

        if job.min_slots > max(cluster.slots_of.values()):
            return why_too_large(job, cluster, fits)
        why = f"its batch cannot be split over {job.min_slots} workers on any type of node"
        return why_no_size(cluster, fits, why, why)

    def _remaining(self, job: PolicyJob, one: float, now: float) -> float:
        """Return the remaining progress of a job."""
        if job.report is None:
            seconds = job.remaining(now)
            return max(job.served(now) if seconds is None else seconds * job.slots, 1.0)
        done = job.report.progress
        if job.total_progress:
            return max(job.total_progress - done, job.total_progress * _LEAST_PART)
        return max(done, one * self.prior)


def _row_numbers(job: int, rows: Sequence[Row]) -> tuple[int, ...]:
    """Return the indices of the limits and quotas that a job counts towards."""
    return tuple(number for number, row in enumerate(rows) if job in row.jobs)


def _candidates(cluster: Cluster, job: PolicyJob) -> Iterator[Candidate]:
    """Yield the candidate sizes of a job: at most `_GROWTH` times the slots that it, or a job like it, has run with.

    Beyond that, the model would be extrapolated too far.
    """
    had = job.allocation if _is_kept(job) else None
    run = max([job.largest_run, *(row.workers for rows in (job.known or {}).values() for row in rows)])
    for type_ in cluster.types if had is None else (had.type,):
        if not job.elastic:
            yield from exactly(cluster, type_, job.slots)
            continue
        largest = min(job.max_slots, max(1, job.min_slots, _GROWTH * run))
        found: Sequence[Candidate] = sizes(cluster, type_, largest)
        if job.min_slots > 1:
            found = [one for one in found if one.slots >= job.min_slots]
        found = found or _smallest(cluster, type_, job)
        yield from found
        if had is not None and had.slots not in [one.slots for one in found]:
            yield Candidate(had.type, len(had.parts), had.slots)  # Its present slots always fit.


def _smallest(cluster: Cluster, type_: str, job: PolicyJob) -> list[Candidate]:
    """Return the smallest size that a job can run with, and the next size that causes no fragmentation."""
    whole = [one for one in sizes(cluster, type_, job.max_slots) if one.slots >= job.min_slots]
    return [*exactly(cluster, type_, job.min_slots), *whole[:1]]


def _is_kept(job: PolicyJob) -> bool:
    """Return whether a job runs and must not be suspended. If it is elastic, its size may change."""
    return job.allocation is not None and not job.preemptible


def _may_keep(index: int, job: PolicyJob, offered: Collection[tuple[int, str, int]]) -> bool:
    """Return whether a job's present slots are among its candidate sizes."""
    had = job.allocation
    return had is not None and (index, had.type, had.slots) in offered


def _claims(jobs: Sequence[PolicyJob], offers: Sequence[Offer]) -> list[Claim]:
    """Return the claim of each job."""
    best: dict[int, Choice] = {}
    least: dict[int, int] = {}
    for offer in offers:
        choice = offer.choice
        if choice.job not in best or choice.value > best[choice.job].value:
            best[choice.job] = choice
        least[choice.job] = min(choice.slots, least.get(choice.job, choice.slots))
    claims = []
    for index, job in enumerate(jobs):
        if index in best:
            claims.append(Claim(best[index].slots, least[index] if _is_kept(job) else 0))
        else:
            has = job.allocation.slots if job.allocation is not None else 0
            claims.append(Claim(has, has, fixed=True))
    return claims


def _staying(job: PolicyJob) -> Sized:
    """Return the present size of a job that must not be suspended."""
    had = job.allocation
    assert had is not None
    return Sized(job, Candidate(had.type, len(had.parts), had.slots))


def _restart_cost(job: PolicyJob, candidate: Candidate, now: float) -> float:
    """Return the seconds without progress that a change to a size costs from now on."""
    had = job.allocation
    if had is not None and (had.type, had.slots) == (candidate.type, candidate.slots):
        return max(0.0, job.restarting_until - now)
    return job.restart_cost

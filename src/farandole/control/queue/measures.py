"""Turns measurements of trainings into `TrainingReport`s for policies. Pure; implausible measurements are left out.

A job measures only on the hosts that it runs on. Its speed on another type of host is estimated from the other jobs,
as in Sia (Jayaram Subramanya et al., SOSP '23): if they were twice as fast there, this one is taken to be. While no
job has run on both types, they are assumed to be equally fast, except for one job, for which the other type is assumed
to be slightly faster: so it tries that type where slots are free, and from then on there is a comparison.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from statistics import median

from farandole.base.wire.rendezvous import Measures
from farandole.control.queue.model import AttemptFact, QueueHost, QueueJob
from farandole.control.scheduler.job import BatchLimits, Measurement, Noise, TrainingReport

_MOST = 2**40
"""The largest accepted number of samples or workers: larger than any real one, and exact as a float."""
UNTRIED = 0.9
"""Assumed time of a pass on an untried type, relative to a known one, for the one job that is to try it."""


def measured_by(
    jobs: Mapping[str, QueueJob],
    facts: Mapping[str, AttemptFact],
    before: Callable[[QueueJob, int], Sequence[Measures]],
) -> dict[str, tuple[Measures, ...]]:
    """Return the measurements of jobs: those of the running attempt and of the one before it.

    Args:
        jobs: all jobs, by name.
        facts: the observed attempts that may be running.
        before: returns the measurements of an attempt that is over.
    """
    found = {}
    for name, job in jobs.items():
        if job.phase.is_over:
            continue
        report = facts[name].report if name in facts else None
        last = job.attempt - 1 if job.phase.has_attempt else job.attempt
        earlier = before(job, last) if last > 0 and job.spec.is_elastic else ()
        found[name] = (*earlier, *(report.measures if report is not None else ()))
    return found


def reports_of(
    jobs: Mapping[str, QueueJob], measured: Mapping[str, Sequence[Measures]], hosts: Sequence[QueueHost]
) -> dict[str, TrainingReport]:
    """Return what policies may know about the jobs that have measurements, by job name."""
    type_of = {host.name: host.type for host in hosts}
    reports = {}
    for name, measures in measured.items():
        here = {type_of[host] for host in jobs[name].slots if host in type_of}
        report = report_of(measures, here.pop() if len(here) == 1 else "", type_of)
        if report is not None:
            reports[name] = report
    return with_guesses(reports, list(dict.fromkeys(type_of.values())))


def report_of(measures: Sequence[Measures], here: str, type_of: Mapping[str, str]) -> TrainingReport | None:
    """Return the report of a job's measurements; None if none of them is plausible.

    Args:
        measures: the measurements, latest last.
        here: the type of the job's hosts, for measurements that name no hosts; "" if it is unknown.
        type_of: the type of each host of the queue, by name.
    """
    told = [each for each in measures if _makes_sense(each)]
    if not told:
        return None
    last = told[-1]
    types = dict.fromkeys(type_of.values())
    limits = BatchLimits(last.base, max(last.largest, last.base), dict.fromkeys(types, (1.0, float(last.most_in_pass))))
    measured: dict[str, dict[tuple[int, int, float], Measurement]] = {}
    for each in told:
        of_hosts = {type_of.get(host, "") for host in each.on} or {here}
        type_ = of_hosts.pop()
        if type_ and not of_hosts:
            row = Measurement(each.hosts, each.workers, each.local, each.step, each.sync)
            measured.setdefault(type_, {})[row.nodes, row.workers, row.local] = row
    known = last.square > 0 and last.trace > 0
    return TrainingReport(
        limits,
        {type_: tuple(rows.values()) for type_, rows in measured.items()},
        noise=Noise(last.square, last.trace / last.base) if known else None,
        progress=last.progress,
        # It grows with each configuration, and when the noise becomes known: only then is a model fitted again.
        version=sum(map(len, measured.values())) * 2 + known,
    )


def with_guesses(reports: Mapping[str, TrainingReport], types: Sequence[str]) -> dict[str, TrainingReport]:
    """Return the reports with the estimated time of one worker on types that a job has not run on."""
    ratios: dict[tuple[str, str], list[float]] = {}
    for report in reports.values():
        for one, rows in report.measured.items():
            for other, others in report.measured.items():
                if one != other:
                    ratios.setdefault((one, other), []).append(_ratio(rows, others))
    explorers = {
        type_: next((name for name in sorted(reports) if reports[name].measured.keys() - {type_}), "")
        for type_ in types
        if not any(type_ in pair for pair in ratios)
    }
    return {name: _guessed(name, report, types, ratios, explorers) for name, report in reports.items()}


def _guessed(
    name: str,
    report: TrainingReport,
    types: Collection[str],
    ratios: Mapping[tuple[str, str], Sequence[float]],
    explorers: Mapping[str, str],
) -> TrainingReport:
    if not report.measured:
        return report
    one_slot = {}
    for type_ in types:
        if type_ in report.measured:
            continue
        # From a type that measurements of other jobs allow to compare with it, if there is one.
        source = max(report.measured, key=lambda own: ((own, type_) in ratios, len(report.measured[own]), own))
        found = ratios.get((source, type_))
        ratio = median(found) if found else UNTRIED if explorers.get(type_) == name else 1.0
        computes = {row.local: (row.step - row.sync) * ratio for row in report.measured[source]}
        one_slot[type_] = tuple(Measurement(1, 1, local, seconds, 0.0) for local, seconds in sorted(computes.items()))
    return replace(report, one_slot=one_slot)


def _ratio(rows: Sequence[Measurement], others: Sequence[Measurement]) -> float:
    """Return how many times longer a pass without its all-reduce takes in the other rows, for the same batch."""
    found = []
    for row in others:
        near = min(rows, key=lambda one: abs(math.log(one.local / row.local)))
        found.append((row.step - row.sync) / row.local / ((near.step - near.sync) / near.local))
    return median(found)


def _makes_sense(each: Measures) -> bool:
    numbers = (each.local, each.step, each.sync, each.square, each.trace, each.progress)
    return (
        all(math.isfinite(number) and number >= 0 for number in numbers)
        and all(1 <= count <= _MOST for count in (each.base, each.largest, each.most_in_pass, each.hosts, each.workers))
        and each.hosts <= each.workers
        and each.local > 0
        and each.step > each.sync
    )

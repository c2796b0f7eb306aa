"""The adaptive policy with no more information than Sia's published implementation has, to compare the two.

What is known of a job before it has run is one measurement on each type: the largest batch of one slot, in the time of
the slowest batch, because Sia uses the ratio of these. The seconds of a restart are Sia's guesses, some of which are
wrong, and whether a job is restarting is known, but not until when. A decision counts on no larger batch than the one
in the trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from farandole.control.scheduler.cluster import Cluster
from farandole.control.scheduler.job import Decision, Measurement, PolicyJob, TrainingReport
from farandole.control.scheduler.policy import Policy
from farandole.control.simulator.application import Application
from farandole.control.simulator.job_trace import Workload

GUESSES = {"cifar10": 30.0, "deepspeech2": 25.0, "bert": 120.0, "yolov3": 45.0, "imagenet": 250.0}
"""Seconds of a restart, as Sia expects them."""
OTHERWISE = 30.0


def with_one_measurement(applications: Mapping[str, Application]) -> dict[str, Application]:
    """Return applications of which only one measurement on each type is known before they run."""
    return {
        name: replace(one, one_slot={type_: _largest(rows) for type_, rows in one.one_slot.items()})
        for name, one in applications.items()
    }


def _largest(rows: Sequence[Measurement]) -> tuple[Measurement, ...]:
    slowest = max(rows, key=lambda row: row.step)
    return (slowest._replace(local=max(row.local for row in rows)),)


class EqualInformation:
    """A policy that is told only what Sia is told.

    Args:
        policy: the policy that decides.
        workload: the jobs; their batch sizes limit what decisions count on.
    """

    def __init__(self, policy: Policy, workload: Workload) -> None:
        self._policy = policy
        self._largest = {job.name: job.batch for job in workload.jobs}
        self._told: dict[str, tuple[TrainingReport, TrainingReport]] = {}
        self.resizes = policy.resizes

    def decide(self, cluster: Cluster, jobs: Sequence[PolicyJob], now: float) -> Decision:
        """Return the slots of each job, with reasons."""
        return self._policy.decide(cluster, [self._shown(job, now) for job in jobs], now)

    def _shown(self, job: PolicyJob, now: float) -> PolicyJob:
        """Return a job without the information that Sia does not have."""
        guess = GUESSES.get(job.application, OTHERWISE)
        until = job.restarting_until
        if until > now:  # A restart that takes longer than the guess is expected to be half done.
            until = max(job.account.since + guess, now + guess / 2)
        report = None if job.report is None else self._report(job.name, job.report)
        return replace(job, restart_cost=guess, restarting_until=until, report=report)

    def _report(self, name: str, report: TrainingReport) -> TrainingReport:
        """Return a report with the limit of the batch: the same one for the same, so that models are kept."""
        before = self._told.get(name)
        if before is None or before[0] is not report:
            limits = replace(report.limits, largest=max(self._largest[name], report.limits.initial))
            self._told[name] = before = (report, replace(report, limits=limits))
        return before[1]

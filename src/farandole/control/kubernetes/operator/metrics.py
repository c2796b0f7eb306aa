"""The operator's metrics as OpenMetrics text."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from farandole.control.kubernetes import conditions
from farandole.control.kubernetes.kinds import MPI_JOB
from farandole.control.kubernetes.model import Object
from farandole.control.kubernetes.mpijob import hosts

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
# Conditions of MPIJobs, and the names of mpi-operator's counters for them.
_OF_MPI_OPERATOR = {conditions.CREATED: "created", conditions.SUCCEEDED: "successful", conditions.FAILED: "failed"}
_BOUNDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


def state_of(job: Object) -> str:
    """Return the state of a job in one word."""
    return conditions.state(_conditions(job.get("status")))


def _conditions(status: object) -> list[dict[str, Any]]:
    return conditions.of_status(status if isinstance(status, Mapping) else None)


class Histogram:
    """A histogram of durations in seconds."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        """Count one more duration."""
        self._counts[bisect_left(_BOUNDS, seconds)] += 1
        self._sum += seconds

    def lines(self, name: str) -> Iterable[str]:
        """Return the samples."""
        total = 0
        for bound, count in zip((*map(str, _BOUNDS), "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_count {total}"
        yield f"{name}_sum {self._sum:.6f}"


class Metrics:
    """The metrics of one operator.

    Attributes:
        latency: seconds from the time at which a job was due to the end of its reconciliation.
        work: seconds of the reconciliation itself.
        mpi_jobs: numbers of created, successful and failed MPIJobs, by mpi-operator's names.
    """

    def __init__(self) -> None:
        self.latency = Histogram()
        self.work = Histogram()
        self.reconciles: Counter[str] = Counter()
        self.writes = 0
        self.mpi_jobs = Counter(dict.fromkeys(_OF_MPI_OPERATOR.values(), 0))

    def count_mpi_job(self, before: object, after: object) -> None:
        """Count the changes of an MPIJob's status."""
        was, is_now = _conditions(before), _conditions(after)
        for condition, name in _OF_MPI_OPERATOR.items():
            self.mpi_jobs[name] += conditions.holds(is_now, condition) and not conditions.holds(was, condition)

    def text(
        self, jobs: Iterable[tuple[str, Object]], requests: Mapping[str, int], waiting: int, leading: bool, relists: int
    ) -> str:
        """Return all metrics as OpenMetrics text."""
        jobs = list(jobs)
        states = Counter((kind, state_of(job)) for kind, job in jobs)
        lines = [
            *_family("jobs", "gauge", "Jobs by kind and state."),
            *(f'{_name("jobs")}{{kind="{kind}",state="{state}"}} {n}' for (kind, state), n in sorted(states.items())),
            *_family("reconcile_latency_seconds", "histogram", "Time from when a job was due until it was reconciled."),
            *self.latency.lines(_name("reconcile_latency_seconds")),
            *_family("reconcile_seconds", "histogram", "Duration of reconciliations."),
            *self.work.lines(_name("reconcile_seconds")),
            *_family("reconciles", "counter", "Reconciliations by result."),
            *(f'{_name("reconciles")}_total{{result="{name}"}} {n}' for name, n in sorted(self.reconciles.items())),
            *_family("api_requests", "counter", "Requests to the API server by method."),
            *(f'{_name("api_requests")}_total{{method="{name}"}} {n}' for name, n in sorted(requests.items())),
            *_family("writes", "counter", "Requests of reconciliations that changed something."),
            f"{_name('writes')}_total {self.writes}",
            *_family("queue_jobs", "gauge", "Jobs that wait for reconciliation."),
            f"{_name('queue_jobs')} {waiting}",
            *_family("relists", "counter", "Number of times that everything was listed."),
            f"{_name('relists')}_total {relists}",
            *_family("leading", "gauge", "1 for the operator that reconciles, 0 for the others."),
            f"{_name('leading')} {int(leading)}",
            *(line for name, count in self.mpi_jobs.items() for line in _mpi_counter(name, count)),
            "# TYPE mpi_operator_job_info gauge",
            *(_mpi_info(job) for kind, job in jobs if kind == MPI_JOB.kind),
            "# EOF",
        ]
        return "\n".join(lines) + "\n"


def _mpi_counter(name: str, count: int) -> tuple[str, str]:
    return f"# TYPE mpi_operator_jobs_{name} counter", f"mpi_operator_jobs_{name}_total {count}"


def _mpi_info(job: Object) -> str:
    namespace = job["metadata"]["namespace"]
    return f'mpi_operator_job_info{{launcher="{hosts.launcher_name(job)}",namespace="{namespace}"}} 1'


def _name(name: str) -> str:
    return f"farandole_operator_{name}"


def _family(name: str, kind: str, text: str) -> list[str]:
    unit = [f"# UNIT {_name(name)} seconds"] if name.endswith("_seconds") else []
    return [f"# TYPE {_name(name)} {kind}", *unit, f"# HELP {_name(name)} {text}"]

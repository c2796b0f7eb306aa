"""The outcome of a job, from the ends of its workers: a pure function except for the error files that it writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from farandole.base.display.wording import error_lines
from farandole.control.launcher.failure.error_file import write_error_files
from farandole.control.launcher.failure.failure_text import exit_code, render_failure
from farandole.control.launcher.failure.record import WorkerRecord, first_failure
from farandole.control.launcher.job.spec import LaunchSpec
from farandole.control.launcher.plan.model import HostPlan, LaunchPlan, WorkerPlan
from farandole.control.launcher.slots.job_state import End, JobState
from farandole.control.launcher.supervise.workers import Workers

# Seconds beyond which failures are unrelated: by then, new workers have replaced the first ones.
TOGETHER_SECONDS = 120.0


@dataclass(frozen=True)
class JobOutcome:
    """The end of a job."""

    exit_code: int
    report: str = ""
    """The report for people; "" if the job succeeded or the user ended it."""
    rank: int | None = None
    """The rank that failed first."""
    results: tuple[bytes | None, ...] = ()
    """Results of the workers of `farandole.run`: of the latest world by rank, then of others that finished."""
    raised: bytes | None = None
    """The exception of the worker that failed first, as it was received."""


class Running(Protocol):
    """A job that can be ended early."""

    def stop(self, code: int, why: str) -> None:
        """End the job for the user; a second call ends it at once. `code` becomes the exit code."""

    def send_signal(self, number: int) -> None:
        """Send a signal to all workers, whose programs handle it."""

    def pause(self) -> None:
        """Inform the agents that the launcher is about to be suspended, so that they do not consider it lost."""


class Observer:
    """Receives failures and reported values while workers run; this base class ignores them.

    The methods are called in the loop's thread, so they must return quickly.
    """

    def worker_failed(self, rank: int, code: int) -> None:
        """Handle a worker's failure; `code` is its exit code, or 128 plus the number of a signal."""

    def ends_others(self, rank: int) -> None:
        """Handle that the other workers are ended because this worker has failed."""

    def value_reported(self, rank: int | None, payload: bytes) -> None:
        """Handle a value of `farandole.report`.

        Args:
            rank: the rank of its worker, if it has one.
            payload: the pickled value.
        """


def outcome_of(
    spec: LaunchSpec,
    state: JobState,
    workers: Workers,
    results: Mapping[int, bytes],
    hint: Callable[[HostPlan, str], str],
) -> tuple[JobOutcome, str]:
    """Return the outcome of a job, and the error if its record could not be written.

    Args:
        spec: the launch of the job.
        state: the last state of the job, which has ended.
        workers: the last workers of the job.
        results: the results of workers of `farandole.run`, by worker.
        hint: see `Preparation.hint`.
    """
    end, world = state.end, state.world
    assert end is not None
    records = [worker.record for worker in workers.by_number.values()]
    least = state.limits.min_size if state.generation == 0 else 1
    first, ended_at = _to_blame(end, world, records, least), end.since
    if first is None and not end.why:
        return JobOutcome(0, results=_by_rank(results, workers, world)), ""
    trouble = ""
    if spec.output_dir is not None:
        folders = {record.rank: workers.folder(record.rank) for record in records}
        trouble = write_error_files(folders, records, ended_at)
    if first is None:
        return JobOutcome(1, error_lines(end.why, end.hint)), trouble
    last = [record for record in records if record is first or record.rank in world or record.exit_time > ended_at]
    plan = _plan_of(workers, [record.rank for record in last])
    said = f"{first.exception}\n{first.stderr_tail.decode('utf-8', 'replace')}"
    better = end.hint or hint(plan.host_of(first.rank), said)
    report = render_failure(plan, last, first, ended_at, better, spec.access)
    if end.why:
        report = f"error: {end.why}\nfirst failure: {report.removeprefix('error: ')}"
    rank = world.index(first.rank) if first.rank in world else None
    return JobOutcome(exit_code(first, ended_at), report, rank, raised=results.get(first.rank)), trouble


def _to_blame(end: End, world: Sequence[int], records: Sequence[WorkerRecord], least: int = 1) -> WorkerRecord | None:
    """Return the worker whose failure is the subject of the report.

    Without a world, workers that fail are replaced until as many as `least` have ended well.
    """
    ended_at = end.since
    if end.worker is not None:
        return next((record for record in records if record.rank == end.worker), None)
    if end.why:
        return first_failure(_last_to_fail(records, ended_at), ended_at)
    ended_well = sorted(record.exit_time for record in records if record.exit_code == 0)
    succeeded_at = ended_well[least - 1] if len(ended_well) >= least else ended_at
    # A worker that failed before others finished was replaced, or the others continued without it.
    last = [record for record in records if (record.rank in world if world else record.exit_time >= succeeded_at)]
    return first_failure(last, ended_at)


def _last_to_fail(records: Sequence[WorkerRecord], ended_at: float) -> list[WorkerRecord]:
    """Return the workers that failed in quick succession, up to the last failure; earlier failures are history."""
    failed = [record for record in records if record.failed_by_itself(ended_at)]
    failed.sort(key=lambda record: record.failure_time)
    begin = max(
        (
            index
            for index in range(1, len(failed))
            if failed[index].failure_time - failed[index - 1].failure_time > TOGETHER_SECONDS
        ),
        default=0,
    )
    return failed[begin:]


def _plan_of(workers: Workers, numbers: Sequence[int]) -> LaunchPlan:
    """Return a plan with only these workers, each on its host, for a report, which does not need their places."""
    plans = [worker.job_host.plan for worker in workers.by_number.values()]
    hosts = {plan.hosts[0].name: plan.hosts[0] for plan in plans}
    there: dict[str, list[WorkerPlan]] = {name: [] for name in hosts}
    for number in numbers:
        host = workers.by_number[number].host
        there[host].append(replace(hosts[host].workers[0], rank=number))
    return replace(
        plans[0],
        hosts=tuple(replace(host, workers=tuple(there[name])) for name, host in hosts.items()),
        noun=workers.noun,
    )


def _by_rank(results: Mapping[int, bytes], workers: Workers, world: Sequence[int]) -> tuple[bytes | None, ...]:
    """Return the results of the latest world's workers by rank, followed by those of other workers that finished.

    A function need not call `init()`, and a worker may finish before the latest world begins: such results are in the
    order of the workers' numbers.
    """
    ended_well = {number for number, worker in workers.by_number.items() if worker.record.exit_code == 0}
    others = sorted(ended_well.intersection(results).difference(world))
    return tuple(results.get(worker) for worker in (*world, *others))

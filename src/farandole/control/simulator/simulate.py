"""The command `farandole simulate`: reads workloads, simulates them under each policy, and prints the figures."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from farandole.base.spelling import did_you_mean
from farandole.control.scheduler.cluster import Cluster, parse_cluster
from farandole.control.scheduler.errors import SchedulerError, TraceError
from farandole.control.scheduler.policies import describe, make_policy
from farandole.control.scheduler.rules import Rules, check_quotas, parse_queues
from farandole.control.simulator import charts, oracle, swf, synthetic
from farandole.control.simulator.application import Application
from farandole.control.simulator.job_trace import Workload, read_workloads, workloads_of
from farandole.control.simulator.metrics import JobResult, Summary, job_results, summarise
from farandole.control.simulator.policy_table import render
from farandole.control.simulator.profiles import applications_of, read_profiles
from farandole.control.simulator.setup import Options, alone, simulate
from farandole.control.simulator.tables import read_texts

if TYPE_CHECKING:
    from rich.progress import Progress

DEFAULT_INTERVAL = 60.0
MOST_NAMED = 20
"""Maximum number of names in a message."""
BAR_AFTER = 1.0
"""Seconds after which a progress bar appears on a terminal."""


@dataclass(frozen=True)
class Inputs:
    """The inputs of the simulations."""

    workloads: Sequence[Workload]
    applications: Mapping[str, Application]
    cluster: Cluster
    interval: float


@dataclass(frozen=True)
class PolicyResult:
    """The results of one policy over all workloads."""

    summary: Summary
    jobs: Sequence[JobResult]
    unfinished: Sequence[Mapping[str, str]]
    """Jobs that could not be completed, which are not in any figure: workload, name and reason of each."""
    seconds: float
    """Run time of the simulation in seconds."""


def run(options: argparse.Namespace, out: TextIO, err: TextIO) -> int:
    """Run the command, and return its exit code.

    Raises:
        SchedulerError: the requested simulation is not possible.
    """
    if options.policies:
        rows = [*describe(), (oracle.NAME, oracle.SENTENCE)]
        if options.json:
            print(json.dumps([{"name": name, "sentence": sentence} for name, sentence in rows], indent=2), file=out)
        else:
            print(*(f"{name:14} {sentence}" for name, sentence in rows), sep="\n", file=out)
        return 0
    names = [name.strip() for name in options.policy.split(",")]
    rules = Rules(options.quantum, options.ageing, parse_queues(options.queue))
    for name in names:
        if name != oracle.NAME:
            make_policy(name, rules)  # Mistakes are reported before anything is read.
    _check(options)
    inputs = read_inputs(options)
    _check_queues(rules, inputs.workloads)
    check_quotas(rules.queues.values(), inputs.cluster.slots)
    for workload in inputs.workloads:
        print(*workload.notes, sep="\n", end="\n" if workload.notes else "", file=err)
    with _own_output(out) as own:
        results = [
            _simulate(name, replace(rules, round=inputs.interval or 60.0), inputs, options, err) for name in names
        ]
        if options.json:
            json.dump(_document(inputs, results), own, indent=1)
            print(file=own)
        else:
            print(*render([result.summary for result in results]), sep="\n", file=own)
    if options.plot is not None:  # Last, so that the results are already printed if the file cannot be written.
        with _writing(options.plot):
            charts.write(options.plot, [(result.summary, result.jobs) for result in results])
        print(f"charts: {options.plot}", file=err)
    return 0


@contextmanager
def _writing(place: Path) -> Iterator[None]:
    """Turn an error while a file is written into one that names the file."""
    try:
        yield
    except OSError as error:
        raise SchedulerError(f"{place} cannot be written: {error.strerror or error}") from None


def _check_queues(rules: Rules, workloads: Sequence[Workload]) -> None:
    """Check that every queue with rules has jobs, or a descendant with jobs."""
    used = {job.queue for workload in workloads for job in workload.jobs}
    above = {queue.parent for queue in rules.queues.values()}
    for name in rules.queues:
        if name not in used | above:
            listed = f"There are {', '.join(sorted(used)[:MOST_NAMED])}"
            raise SchedulerError(f"--queue {name}: no job is in that queue", did_you_mean(name, used, listed))


def _check(options: argparse.Namespace) -> None:
    if (options.trace is None) == (not options.demo):
        raise SchedulerError("there is nothing to simulate", "name a trace with --trace, or use --demo")
    for name in ("interval", "restart"):
        value = getattr(options, name)
        if value is not None and not 0 <= value < 1e9:
            raise SchedulerError(f"--{name} {value:g} is not a number of seconds")
    if not options.quantum > 0 or not options.ageing > 0:
        raise SchedulerError("--quantum and --ageing take seconds above 0")
    if options.jobs < 1:
        raise SchedulerError(f"--jobs {options.jobs}: a demonstration needs at least one job")
    if options.plot is not None:
        charts.check(options.plot)


def read_inputs(options: argparse.Namespace) -> Inputs:
    """Return the inputs that the options name.

    Raises:
        SchedulerError: an input cannot be read.
    """
    text, interval = options.cluster, DEFAULT_INTERVAL if options.interval is None else options.interval
    if options.demo:
        files = {**synthetic.profiles(), "workloads/demo.csv": synthetic.workload(options.seed, options.jobs)}
        if options.save_demo is not None:
            _save(options.save_demo, files)
        made = applications_of(files)
        cluster = _known_types(parse_cluster(text or synthetic.CLUSTER), made)
        return Inputs(workloads_of(files, made), made, cluster, interval)
    if traces := swf.traces_at(options.trace):
        read = [swf.read_swf(trace) for trace in traces]
        found = [max(job.slots for job in workload.jobs) for workload in read]
        slots = max(swf.processors(trace) or most for trace, most in zip(traces, found, strict=True))
        return Inputs(_chosen(read, options.only), {}, parse_cluster(text or f"{slots}x1"), options.interval or 0.0)
    applications = _applications(options)
    workloads = _chosen(read_workloads(options.trace, applications), options.only)
    if text is None:
        raise SchedulerError("which cluster?", "such as --cluster aws:6x4,dgx-ext:2x8,rtx:3x8")
    return Inputs(workloads, applications, _known_types(parse_cluster(text), applications), interval)


def _applications(options: argparse.Namespace) -> Mapping[str, Application]:
    if options.profiles is not None:
        return read_profiles(options.profiles)
    applications = applications_of(read_texts(options.trace)) if options.trace.exists() else {}
    if not applications and options.trace.exists():
        raise TraceError(f"{options.trace} has no profiles of its applications", "name them with --profiles DIR|TAR")
    return applications


def _chosen(workloads: list[Workload], only: str | None) -> list[Workload]:
    if only is None:
        return workloads
    wanted, known = only.split(","), {workload.name: workload for workload in workloads}
    for name in wanted:
        if name not in known:
            raise SchedulerError(f"there is no workload {name}", f"there are {', '.join(known)}")
    return [known[name] for name in wanted]


def _known_types(cluster: Cluster, applications: Mapping[str, Application]) -> Cluster:
    types = sorted({type_ for application in applications.values() for type_ in application.steps})
    for type_ in cluster.types:
        if type_ not in types:
            raise SchedulerError(
                f"no application has a profile for nodes of type {type_}", f"there are {', '.join(types)}"
            )
    return cluster


def _save(place: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = place / name
        with _writing(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        with _writing(path):
            path.write_text(text)


def _simulate(name: str, rules: Rules, inputs: Inputs, options: argparse.Namespace, err: TextIO) -> PolicyResult:
    """Simulate all workloads under one policy."""
    how = Options(
        interval=inputs.interval,
        restart=options.restart,
        predictions=options.predict,
        adapt_batches=not options.fixed_batches,
        resize=not options.fixed_sizes,
    )
    begin = time.monotonic()
    workloads: list[list[JobResult]] = []
    unfinished: list[Mapping[str, str]] = []
    for workload in inputs.workloads:
        bar = _Bar(f"{name}, {workload.name}", err)
        policy = (
            oracle.make_oracle(workload, inputs.applications, inputs.cluster, rules)
            if name == oracle.NAME
            else make_policy(name, rules)
        )
        outcome = simulate(inputs.cluster, workload, inputs.applications, policy, how, bar.show, rules)
        bar.clear()
        alone_ = {
            job.name: alone(job, inputs.applications.get(job.application), inputs.cluster) for job in workload.jobs
        }
        completed = job_results(workload.name, inputs.cluster, outcome, alone_)
        workloads += [completed] if completed else []
        _tell_unfinished(name, workload, outcome.unfinished, err)
        unfinished += [
            {"workload": workload.name, "name": job, "reason": why} for job, why in outcome.unfinished.items()
        ]
    if not workloads:
        raise SchedulerError(f"{name}: no job can be completed on this cluster", "simulate another with --cluster")
    summary = summarise(name, inputs.cluster, workloads)
    return PolicyResult(summary, [job for jobs in workloads for job in jobs], unfinished, time.monotonic() - begin)


def _tell_unfinished(policy: str, workload: Workload, unfinished: Mapping[str, str], err: TextIO) -> None:
    """Warn about jobs that could not be completed, with their lines in the trace."""
    if not unfinished:
        return
    where = {job.name: job.where for job in workload.jobs}
    are = f"{len(unfinished)} of {len(workload.jobs)} jobs could not be completed and are not in the figures"
    print(f"warning: {policy}, {workload.name}: {are}", file=err)
    for name, why in list(unfinished.items())[:MOST_NAMED]:
        print(f"  {where[name]}: job {name} {why}" if where[name] else f"  job {name} {why}", file=err)
    if len(unfinished) > MOST_NAMED:
        print(f"  and {len(unfinished) - MOST_NAMED} more", file=err)


class _Bar:
    """A progress bar on a terminal, for simulations that take a while."""

    def __init__(self, title: str, out: TextIO) -> None:
        self._title, self._out = title, out
        self._begin = time.monotonic() + BAR_AFTER if out.isatty() else float("inf")
        self._progress: Progress | None = None

    def show(self, done: int, all_: int) -> None:
        if self._progress is None:
            if time.monotonic() < self._begin:
                return
            self._progress = _progress(self._out)
            self._task = self._progress.add_task(f"{self._title}, jobs", total=all_)
            self._progress.start()
        self._progress.update(self._task, completed=done)

    def clear(self) -> None:
        if self._progress is not None:
            self._progress.stop()


def _progress(out: TextIO) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(file=out), transient=True)


@contextmanager
def _own_output(out: TextIO) -> Iterator[TextIO]:
    """Reserve standard output for the command's own output: the solver's library prints messages to descriptor 1."""
    if out is not sys.__stdout__:
        yield out
        return
    out.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with open(kept, "w", closefd=False) as own:
            yield own
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _document(inputs: Inputs, results: Sequence[PolicyResult]) -> dict[str, Any]:
    return {
        "cluster": [asdict(node) for node in inputs.cluster.nodes],
        "workloads": [workload.name for workload in inputs.workloads],
        "policies": [
            {
                **result.summary.as_dict(),
                "seconds": round(result.seconds, 3),
                "unfinished": list(result.unfinished),
                "results": [_job(job) for job in result.jobs],
            }
            for result in results
        ],
    }


def _job(job: JobResult) -> dict[str, Any]:
    return {**asdict(job), "completion": job.completion, "waited": job.waited, "fairness": job.fairness}

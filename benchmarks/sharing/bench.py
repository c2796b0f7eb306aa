"""Runs twelve real jobs through the queue on three hosts, under some policies, beside what the simulator predicts.

    make bench BENCH=queue                            # about 8 minutes
    make bench BENCH='queue --jobs training'          # as long
    make bench BENCH='queue --policies fcfs,equal --seconds 30 --decisions'

The hosts are namespaces of this machine (root only), with two slots each. Half of the jobs are elastic. Two kinds:

- `timed` (the default): their steps are sleep, so that their speed depends on their slots and not on the machine.
- `training`: handwritten digits and a model of language, in NumPy, which sleep for each sample as well. Whatever has
  happened to its workers, each must come to the loss that one process comes to with the same steps.

The cost of starts, and the time in which slots are given back and workers join, are measured first, with jobs of their
own (see `measuring`). On a machine with other work these costs change, and `--measure-each` measures them before
each policy.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.sharing import models
from benchmarks.sharing.measuring import measure
from benchmarks.sharing.prediction import HOSTS, STEP_SECONDS, Costs, Job, predicted
from benchmarks.sharing.real_queue import BATCH, RealQueue, rules_for

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
POLICIES = "fcfs,sjf,priority+easy+elastic,equal,adaptive,srtf,rr,preempt,fair"
SHARED = "/var/lib"
"""A folder that all hosts share; their folders for temporary files and homes are private."""
_TELLING = ("starts on ", "has h", "waits again", "is being ended")
_SAME_LOSS = 1e-6


def jobs(seconds: float, kind: str, number: int) -> list[Job]:
    """Return the twelve jobs; each takes about `seconds` with the workers that it asks for."""
    shapes = (("1:4", 1.0, 0), ("2", 0.6, 5), ("1", 0.5, 0), ("2:4", 1.2, 0), ("3", 0.5, 5), ("1:2", 0.8, 0))
    made = []
    for index in range(12):
        workers, factor, priority = shapes[index % len(shapes)]
        most = int(workers.partition(":")[2] or workers)
        queue = models.MODELS[index % 2]
        steps = round(seconds * factor * most / STEP_SECONDS)
        does = queue if kind == "training" else kind
        name = f"p{number}-{does}-{index + 1}"
        made.append(Job(name, does, workers, steps, index * seconds / 8, priority, queue))
    return made


def compare(
    policy: str, these: Sequence[Job], told: dict[str, dict[str, Any]], costs: Costs, queue: RealQueue
) -> dict[str, Any]:
    """Return completion times and decisions beside the prediction."""
    first = min(job["created"] for job in told.values())
    submitted = {name: job["created"] - first for name, job in told.items()}
    prediction = predicted(policy, rules_for(costs), these, submitted, costs)
    ends = prediction.ends
    rows = {
        job.name: {
            "workers": job.workers,
            "submitted": submitted[job.name],
            "started": told[job.name]["started"] - first,
            "real": told[job.name]["finished"] - told[job.name]["created"],
            "predicted": ends[job.name] - submitted[job.name],
        }
        for job in these
    }
    happened = sorted(
        (event["at"] - first, job.name, event["text"])
        for job in these
        for event in queue.status(job.name)["events"]
        if event["text"].startswith(_TELLING)
    )
    real, mine = (statistics.mean(row[key] for row in rows.values()) for key in ("real", "predicted"))
    makespans = max(job["finished"] for job in told.values()) - first, max(ends.values())
    return {
        "policy": policy,
        "real": real,
        "predicted": mine,
        "makespan": makespans,
        "jobs": rows,
        "costs": vars(costs),
        "happened": happened,
        "foretold": prediction.story,
    }


@functools.cache
def expected(model: str, steps: int) -> models.Quality:
    """Return the quality that a training must reach."""
    return models.train_alone(model, steps, BATCH)


def check_trainings(these: Sequence[Job], queue: RealQueue) -> None:
    """Check that each training reached the loss of one process that takes the same steps."""
    for job in these:
        found = re.findall(r"loss (\S+) accuracy (\S+)", queue.ask("logs", job.name))
        want = expected(job.kind, job.steps)
        if len(found) != 1 or abs(float(found[0][0]) - want.loss) > _SAME_LOSS:
            raise SystemExit(f"{job.name} reached {found} instead of {want}:\n{queue.ask('logs', job.name)}")
    worst = min(expected(job.kind, job.steps).accuracy for job in these)
    print(f"all {len(these)} trainings reached the loss of one process; the lowest accuracy is {worst:.2f}", flush=True)


def table(results: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = [
        "| policy | mean completion, real | predicted | difference | makespan, real | predicted | jobs within 15 % |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        near = sum(abs(row["real"] / row["predicted"] - 1) <= 0.15 for row in result["jobs"].values())
        off = 100 * (result["real"] / result["predicted"] - 1)
        spans = " | ".join(f"{span:.0f} s" for span in result["makespan"])
        lines.append(
            f"| {result['policy']} | {result['real']:.1f} s | {result['predicted']:.1f} s | {off:+.0f} % | {spans} "
            f"| {near} of {len(result['jobs'])} |"
        )
    return lines


def decisions(result: dict[str, Any]) -> list[str]:
    """Return the decisions of the simulator (left) and of the queue (right), in the order of time."""
    rows = [(at, f"{job} {slots or 'nothing'}", "") for at, job, slots in result["foretold"]]
    rows += [(at, "", f"{job} {text}") for at, job, text in result["happened"]]
    return [f"{at:7.2f} s  {left:<36}  {right}" for at, left, right in sorted(rows)]


def main(arguments: Sequence[str]) -> int:
    """Run the jobs under each policy, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks queue", description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", choices=("timed", "training"), default="timed", help="default: %(default)s")
    parser.add_argument("--policies", default=POLICIES, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=7.0, help="about the duration of a job (default: %(default)s)")
    parser.add_argument("--measure-each", action="store_true", help="measure costs before each policy")
    parser.add_argument("--decisions", action="store_true", help="print all decisions of simulator and queue")
    parser.add_argument("--output", type=Path, metavar="JSON")
    options = parser.parse_args(arguments)
    from tests.hosts.bed import Bed, why_not

    if reason := why_not():
        raise SystemExit(reason)
    output = options.output or RESULTS / ("queue.json" if options.jobs == "timed" else "queue-training.json")
    results: list[dict[str, Any]] = []
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="farandole-queue-", dir=SHARED) as kept, Bed(HOSTS) as bed:
        queue = RealQueue(bed, Path(kept))
        queue.start()
        for number, policy in enumerate(options.policies.split(",")):
            if number == 0 or options.measure_each:
                costs = measure(queue, options.seconds, options.jobs, number)
                print(", ".join(f"{name} {seconds:.2f} s" for name, seconds in vars(costs).items()), flush=True)
            these = jobs(options.seconds, options.jobs, number)
            told = queue.run(policy, these, costs.elastic_start, rules_for(costs).quantum)
            if options.jobs == "training":
                check_trainings(these, queue)
            results.append(compare(policy, these, told, costs, queue))
            print(*table(results)[-1:], *(decisions(results[-1]) if options.decisions else ()), sep="\n", flush=True)
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(json.dumps(results, indent=1))
        queue.ask("queue", "stop")
    print(*table(results), sep="\n")
    print(
        f"{os.cpu_count()} cores; load at the end {os.getloadavg()[0]:.1f}; {time.monotonic() - begin:.0f} s",
        flush=True,
    )
    return 0

"""Runs twelve real jobs through the queue on three hosts, under some policies, beside what the simulator predicts.

    make bench BENCH=queue
    make bench BENCH='queue --policies fcfs,equal --seconds 30'

The hosts are namespaces of this machine (root only), with two slots each. The jobs train digits and a small model of
language, half of them elastic, at a speed that is known (`job`). What a start costs is measured first, with jobs
of their own; the simulator is told that, the work of each job and when it was submitted, and nothing of what happened.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farandole.scheduler.cluster import Allocation, parse_cluster
from farandole.scheduler.job import JobView
from farandole.scheduler.policies import make_policy
from farandole.scheduler.rules import Rules
from farandole.simulator.simulated_job import SimulatedJob
from farandole.simulator.simulation import Simulation

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "sharing" / "job.py"
RESULTS = ROOT / "benchmarks" / "results" / "queue.json"
HOSTS, SLOTS = 3, 2
POLICIES = "fcfs,sjf,priority+easy+elastic,equal"
STATE = "/root/queue"
BATCH = 48
STEP_SECONDS = 0.5
"""Of one worker; of several, as much less."""
MOST_SECONDS = 1500.0


@dataclass(frozen=True)
class Job:
    """One job: what it trains, its workers, its steps, and when it is submitted."""

    name: str
    model: str
    workers: str
    steps: int
    after: float

    @property
    def elastic(self) -> bool:
        return ":" in self.workers

    @property
    def limits(self) -> tuple[int, int]:
        least, _, most = self.workers.partition(":")
        return int(least), int(most or least)

    @property
    def work(self) -> float:
        """Slot-seconds."""
        return self.steps * STEP_SECONDS

    @property
    def duration(self) -> float:
        """With the workers asked for."""
        return self.work / self.limits[1]


def jobs(seconds: float) -> list[Job]:
    """Return the twelve jobs; one of them takes about so many seconds with the workers that it asks for."""
    kinds = (("1:4", 1.0), ("2", 0.6), ("1", 0.5), ("2:4", 1.2), ("3", 0.5), ("1:2", 0.8))
    made = []
    for index in range(12):
        workers, factor = kinds[index % len(kinds)]
        most = int(workers.partition(":")[2] or workers)
        model = "digits" if index % 2 == 0 or ":" in workers else "language"
        steps = round(seconds * factor * most / STEP_SECONDS)
        made.append(Job(f"{model}-{index + 1}", model, workers, steps, index * seconds / 8))
    return made


# --- what the simulator says -------------------------------------------------------------------------------------


class Training:
    """The work of a job of which newcomers need some time before they help.

    Args:
        slot_seconds: of work.
        join: seconds from the moment at which an elastic job gets more slots to that at which they are used.
    """

    report = None

    def __init__(self, slot_seconds: float, join: float) -> None:
        self._work = slot_seconds
        self._join = join
        self._slots = 0
        self._lag = 0.0
        self._lag_slots = 0

    @property
    def done(self) -> bool:
        return self._work <= 1e-9

    def placed(self, allocation: Allocation) -> None:
        before = self._lag_slots if self._lag > 0 else self._slots
        grows = 0 < before < allocation.slots
        self._slots = allocation.slots
        self._lag, self._lag_slots = (self._join, before) if grows else (0.0, 0)

    def left(self, allocation: Allocation) -> float:
        if self._work <= self._lag * self._lag_slots:
            return self._work / self._lag_slots
        return self._lag + (self._work - self._lag * self._lag_slots) / allocation.slots

    def run(self, seconds: float, allocation: Allocation) -> float:
        used = min(seconds, self.left(allocation))
        slow = min(used, self._lag)
        self._work -= slow * self._lag_slots + (used - slow) * allocation.slots
        self._lag -= slow
        return used


class QueuedJob(SimulatedJob):
    """A job that pays for its start, and not for a change of its size."""

    def __init__(self, view: JobView, work: Training, start: float) -> None:
        super().__init__(view, work, 0.0)
        self._start = start

    def give(self, allocation: Allocation | None, now: float) -> None:
        self._restart_cost = self._start if self.view.allocation is None else 0.0
        super().give(allocation, now)


def predicted(policy: str, these: Sequence[Job], submitted: dict[str, float], start: float) -> dict[str, float]:
    """Return when each job ends, in seconds since the first one was submitted."""
    simulated = []
    for job in these:
        least, most = job.limits
        view = JobView(
            name=job.name,
            submitted=submitted[job.name],
            slots=most,
            min_slots=least,
            max_slots=most,
            duration=job.duration + start,
            since=submitted[job.name],
            preemptible=False,
        )
        simulated.append(QueuedJob(view, Training(job.work, start), start))
    cluster = parse_cluster(f"{HOSTS}x{SLOTS}")
    outcome = Simulation(cluster, simulated, make_policy(policy, Rules())).run()
    return {job.view.name: job.completed for job in outcome.jobs if job.completed is not None}


# --- what happens ----------------------------------------------------------------------------------------------------


class Bench:
    """A queue on the desk of a bed of hosts."""

    def __init__(self, bed: Any) -> None:
        self._bed = bed

    def ask(self, *words: str) -> str:
        variables = f"FARANDOLE_QUEUE={STATE} FARANDOLE_FAILURE_DEADLINE=30 OMP_NUM_THREADS=1"
        line = f"{variables} {shlex.join([sys.executable, '-m', 'farandole', *words])}"
        done = self._bed.desk.run(line, timeout=120)
        if done.returncode:
            raise SystemExit(f"farandole {' '.join(words)}: {done.stderr}")
        return str(done.stdout)

    def start(self) -> None:
        hosts = ",".join(f"{host.name}:{SLOTS}" for host in self._bed.hosts)
        options = "--host-timeout 30 --start-timeout 120"
        self.ask("queue", "start", "--hosts", hosts, "--run-options", options, "--policy", "fcfs")

    def submit(self, job: Job) -> None:
        words = [sys.executable, str(SCRIPT), job.model, "--steps", str(job.steps)]
        words += ["--batch", str(BATCH), "--step", str(STEP_SECONDS)]
        words += ["--elastic"] if job.elastic else []
        duration = f"{job.duration:.1f}"
        self.ask("submit", "--detach", "--name", job.name, "-np", job.workers, "--duration", duration, "--", *words)

    def run(self, policy: str, these: Sequence[Job]) -> dict[str, dict[str, Any]]:
        """Submit jobs as time goes, wait for their end, and return how each is then."""
        self.ask("queue", "config", f"policy={policy}")
        begin, coming = time.monotonic(), list(these)
        while time.monotonic() - begin < MOST_SECONDS:
            while coming and time.monotonic() - begin >= coming[0].after:
                self.submit(coming.pop(0))
            told = {job["name"]: job for job in json.loads(self.ask("jobs", "--json"))}
            mine = [told[job.name] for job in these if job.name in told]
            if not coming and all(job["finished"] for job in mine):
                return {job["name"]: job for job in mine}
            time.sleep(1.0)
        raise SystemExit(f"the jobs are not over after {MOST_SECONDS:.0f} s")

    def show_failures(self, told: dict[str, dict[str, Any]]) -> None:
        """Say what the first job that failed has printed."""
        failed = [name for name, job in told.items() if job["state"] != "Succeeded"]
        if failed:
            raise SystemExit(f"{', '.join(failed)} failed; {failed[0]}:\n{self.ask('logs', failed[0])}")

    def start_cost(self, seconds: float, number: int) -> float:
        """Return what a start, and an end, cost beside the work: jobs of each kind at once, as later."""
        steps = round(seconds / STEP_SECONDS)
        these = [
            Job(f"m{number}-{index}", "digits", workers, steps, 0.0)
            for index, workers in enumerate(("2", "2", "1", "1"))
        ]
        told = self.run("fcfs", these)
        self.show_failures(told)
        costs = [told[job.name]["finished"] - told[job.name]["started"] - job.duration for job in these]
        print(
            f"a start and an end cost {statistics.mean(costs):.1f} s ({min(costs):.1f} to {max(costs):.1f})", flush=True
        )
        return statistics.mean(costs)


def compare(policy: str, these: Sequence[Job], told: dict[str, dict[str, Any]], start: float) -> dict[str, Any]:
    """Return completion times beside the prediction."""
    first = min(job["created"] for job in told.values())
    submitted = {name: job["created"] - first for name, job in told.items()}
    ends = predicted(policy, these, submitted, start)
    rows = {
        job.name: {
            "workers": job.workers,
            "real": told[job.name]["finished"] - told[job.name]["created"],
            "predicted": ends[job.name] - submitted[job.name],
        }
        for job in these
    }
    real, mine = (statistics.mean(row[key] for row in rows.values()) for key in ("real", "predicted"))
    makespans = max(job["finished"] for job in told.values()) - first, max(ends.values())
    return {"policy": policy, "real": real, "predicted": mine, "makespan": makespans, "jobs": rows, "start": start}


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
            f"| {result['policy']} | {result['real']:.0f} s | {result['predicted']:.0f} s | {off:+.0f} % | {spans} "
            f"| {near} of {len(result['jobs'])} |"
        )
    return lines


def main(arguments: Sequence[str]) -> int:
    """Run the jobs under each policy, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks queue", description=__doc__.splitlines()[0])
    parser.add_argument("--policies", default=POLICIES, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=40.0, help="of a job, about (default: %(default)g)")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="JSON")
    options = parser.parse_args(arguments)
    from tests.hosts.bed import Bed, why_not

    if reason := why_not():
        raise SystemExit(reason)
    results: list[dict[str, Any]] = []
    these = jobs(options.seconds)
    with Bed(HOSTS) as bed:
        bench = Bench(bed)
        bench.start()
        for number, policy in enumerate(options.policies.split(",")):
            # Before each: on a machine that has other work, it is another one later.
            start = bench.start_cost(options.seconds / 2, number)
            named = [Job(f"p{number}-{job.name}", job.model, job.workers, job.steps, job.after) for job in these]
            told = bench.run(policy, named)
            bench.show_failures(told)
            results.append(compare(policy, named, told, start))
            print(*table(results)[-1:], sep="\n", flush=True)
            options.output.parent.mkdir(parents=True, exist_ok=True)
            options.output.write_text(json.dumps(results, indent=1))
        bench.ask("queue", "stop")
    print(*table(results), sep="\n")
    print(f"{os.cpu_count()} cores; load at the end {os.getloadavg()[0]:.1f}")
    return 0

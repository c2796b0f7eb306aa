"""Runs twelve real jobs through the queue on three hosts, under some policies, beside what the simulator predicts.

    make bench BENCH=queue                            # 5 to 6 minutes
    make bench BENCH='queue --jobs training'          # 5 to 6 minutes, on a machine without other work
    make bench BENCH='queue --policies fcfs,equal --seconds 30'

The hosts are namespaces of this machine (root only), with two slots each. Half of the jobs are elastic. Two kinds:

- `timed` (the default): their steps are sleep, so that their speed depends on their slots and not on the machine. They
  show whether the queue schedules as the simulator says, on any machine, under policies that suspend and resize too.
- `training`: digits and a small model of language, which sleep for each sample as well. Their start, the import of
  PyTorch, takes as long as the machine has time for it.

What a start costs, and how long slots take to be given back, is measured first, with jobs of their own; on a machine
with other work, it is another cost later, and `--measure-each` measures it before each policy.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.sharing.prediction import HOSTS, SLOTS, STEP_SECONDS, Costs, Job, predicted
from farandole.scheduler.rules import Rules

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "benchmarks" / "sharing"
RESULTS = ROOT / "benchmarks" / "results"
POLICIES = {"timed": "fcfs,sjf,priority+easy+elastic,equal,srtf,adaptive", "training": "fcfs,sjf,equal"}
SECONDS = {"timed": 7.0, "training": 10.0}
STATE = "/root/queue"
SHARED = "/var/lib"
"""Hosts have private folders for temporary files and homes; this one they see and write all together."""
BATCH = 48
ROUND = 5.0
"""Seconds between two decisions of the adaptive policy."""
MOST_SECONDS = 1500.0
POLL_SECONDS = 0.5


def jobs(seconds: float, kind: str, number: int) -> list[Job]:
    """Return the twelve jobs; one of them takes about so many seconds with the workers that it asks for."""
    shapes = (("1:4", 1.0), ("2", 0.6), ("1", 0.5), ("2:4", 1.2), ("3", 0.5), ("1:2", 0.8))
    made = []
    for index in range(12):
        workers, factor = shapes[index % len(shapes)]
        most = int(workers.partition(":")[2] or workers)
        model = "digits" if index % 2 == 0 or ":" in workers else "language"
        steps = round(seconds * factor * most / STEP_SECONDS)
        does = model if kind == "training" else kind
        made.append(Job(f"p{number}-{does}-{index + 1}", does, workers, steps, index * seconds / 8))
    return made


class Bench:
    """A queue on the desk of a bed of hosts.

    Args:
        kept: a directory that all hosts see.
    """

    def __init__(self, bed: Any, kept: Path) -> None:
        self._bed = bed
        self._kept = kept

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
        self.ask("queue", "config", f"round={ROUND:g}")

    def submit(self, job: Job) -> None:
        words = ["--steps", str(job.steps), "--batch", str(BATCH), "--step", str(STEP_SECONDS)]
        options = ["--detach", "--name", job.name, "-np", job.workers, "--duration", f"{job.duration:.1f}"]
        if job.kind == "timed":
            script, words = "timed_job.py", [*words, "--kept", str(self._kept / job.name)]
            options += ["--suspension", "signal", "--checkpoint", str(self._kept)]
        else:
            script, words = "training_job.py", [job.kind, *words, *(["--elastic"] if job.elastic else [])]
        self.ask("submit", *options, "--", sys.executable, str(SCRIPTS / script), *words)

    def run(self, policy: str, these: Sequence[Job], restart_cost: float = 0.0) -> dict[str, dict[str, Any]]:
        """Submit jobs as time goes, wait for their end, and return how each is then.

        Args:
            policy: of the queue.
            these: in the order of their submission.
            restart_cost: what the policy is told that a change costs.
        """
        self.ask("queue", "config", f"policy={policy}", f"restart_cost={restart_cost:.2f}")
        begin, coming = time.monotonic(), list(these)
        while time.monotonic() - begin < MOST_SECONDS:
            while coming and time.monotonic() - begin >= coming[0].after:
                self.submit(coming.pop(0))
            told = {job["name"]: job for job in json.loads(self.ask("jobs", "--json"))}
            mine = [told[job.name] for job in these if job.name in told]
            if not coming and all(job["finished"] for job in mine):
                return {job["name"]: job for job in mine}
            time.sleep(POLL_SECONDS)
        raise SystemExit(f"the jobs are not over after {MOST_SECONDS:.0f} s")

    def show_failures(self, told: dict[str, dict[str, Any]]) -> None:
        """Say what the first job that failed has printed."""
        failed = [name for name, job in told.items() if job["state"] != "Succeeded"]
        if failed:
            raise SystemExit(f"{', '.join(failed)} failed; {failed[0]}:\n{self.ask('logs', failed[0])}")

    def costs(self, seconds: float, kind: str, number: int) -> Costs:
        """Return what starts and ends cost beside the work: jobs of each kind at once, as later."""
        steps = round(seconds / STEP_SECONDS)
        does = "digits" if kind == "training" else kind
        these = [
            Job(f"m{number}-{index}", does, workers, steps * int(workers[-1]), 0.0)
            for index, workers in enumerate(("2", "1", "1:2", "1"))
        ]
        told = self.run("fcfs", these)
        self.show_failures(told)
        beside = {job: told[job.name]["finished"] - told[job.name]["started"] - job.duration for job in these}
        rigid = statistics.mean(cost for job, cost in beside.items() if not job.elastic)
        elastic = statistics.mean(cost for job, cost in beside.items() if job.elastic)
        back = self._hand_overs(number) if kind == "timed" else (0.0, 0.0)
        print(
            f"a start and an end cost {rigid:.1f} s, of an elastic job {elastic:.1f} s; slots are given back after "
            f"{back[0]:.1f} s and {back[1]:.1f} s",
            flush=True,
        )
        return Costs(rigid, elastic, *back)

    def _hand_overs(self, number: int) -> tuple[float, float]:
        """Return how long a job that is suspended holds its slots: one of fixed size, and an elastic one."""
        both = [Job(f"h{number}-{index}", "timed", workers, 10**6, 0.0) for index, workers in enumerate(("2", "1:2"))]
        for job in both:
            self.submit(job)
        for job in both:
            self._until(job, "Running")
        time.sleep(2.0)  # Their workers are there then, or about to be.
        for job in both:
            self.ask("suspend", job.name)
        seconds = []
        for job in both:
            self._until(job, "Suspended")
            at = {event["text"].partition(":")[0]: event["at"] for event in self._status(job)["events"]}
            self.ask("cancel", job.name)
            seconds.append(float(at["is suspended"] - at["was suspended"]))
        return seconds[0], seconds[1]

    def _status(self, job: Job) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self.ask("status", job.name, "--json"))
        return status

    def _until(self, job: Job, state: str) -> None:
        until = time.monotonic() + 60.0
        while self._status(job)["state"] != state:
            if time.monotonic() > until:
                raise SystemExit(f"{job.name} is not {state} after a minute")
            time.sleep(POLL_SECONDS)


def compare(policy: str, these: Sequence[Job], told: dict[str, dict[str, Any]], costs: Costs) -> dict[str, Any]:
    """Return completion times beside the prediction."""
    first = min(job["created"] for job in told.values())
    submitted = {name: job["created"] - first for name, job in told.items()}
    ends = predicted(policy, Rules(round=ROUND), these, submitted, costs)
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
    real, mine = (statistics.mean(row[key] for row in rows.values()) for key in ("real", "predicted"))
    makespans = max(job["finished"] for job in told.values()) - first, max(ends.values())
    return {"policy": policy, "real": real, "predicted": mine, "makespan": makespans, "jobs": rows}


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


def main(arguments: Sequence[str]) -> int:
    """Run the jobs under each policy, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks queue", description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", choices=("timed", "training"), default="timed", help="default: %(default)s")
    parser.add_argument("--policies", help=f"default: {POLICIES['timed']}, with training {POLICIES['training']}")
    parser.add_argument("--seconds", type=float, help="of a job, about")
    parser.add_argument("--measure-each", action="store_true", help="measure costs before each policy")
    parser.add_argument("--output", type=Path, metavar="JSON")
    options = parser.parse_args(arguments)
    from tests.hosts.bed import Bed, why_not

    if reason := why_not():
        raise SystemExit(reason)
    seconds = options.seconds or SECONDS[options.jobs]
    output = options.output or RESULTS / ("queue.json" if options.jobs == "timed" else "queue-training.json")
    results: list[dict[str, Any]] = []
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="farandole-queue-", dir=SHARED) as kept, Bed(HOSTS) as bed:
        bench = Bench(bed, Path(kept))
        bench.start()
        for number, policy in enumerate((options.policies or POLICIES[options.jobs]).split(",")):
            if number == 0 or options.measure_each:
                costs = bench.costs(seconds / 2, options.jobs, number)
            these = jobs(seconds, options.jobs, number)
            told = bench.run(policy, these, costs.elastic_start)
            bench.show_failures(told)
            results.append(compare(policy, these, told, costs))
            print(*table(results)[-1:], sep="\n", flush=True)
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(json.dumps(results, indent=1))
        bench.ask("queue", "stop")
    print(*table(results), sep="\n")
    print(
        f"{os.cpu_count()} cores; load at the end {os.getloadavg()[0]:.1f}; {time.monotonic() - begin:.0f} s",
        flush=True,
    )
    return 0

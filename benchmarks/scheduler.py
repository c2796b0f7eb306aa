"""Scheduling policies on published workloads or, without them, on synthetic ones: for docs/explanation/scheduling.md.

    make bench BENCH=scheduler                       the whole table, about a quarter of an hour
    make bench BENCH='scheduler --rows fcfs,adaptive --workloads workload-1'

FARANDOLE_TRACES is the path of the archive of published profiles and workloads, which the project does not contain.
A simulation is deterministic: the same row is the same on any machine. Results are kept in a JSON file,
row by row.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.equal_information import EqualInformation, with_one_measurement
from benchmarks.peers.base import ROOT
from farandole.control.scheduler.cluster import parse_cluster
from farandole.control.scheduler.policies import make_policy
from farandole.control.scheduler.rules import Rules
from farandole.control.simulator import synthetic
from farandole.control.simulator.application import Application
from farandole.control.simulator.job_trace import Workload, read_workloads, workloads_of
from farandole.control.simulator.metrics import job_results, summarise
from farandole.control.simulator.oracle import NAME, make_oracle
from farandole.control.simulator.profiles import applications_of, read_profiles
from farandole.control.simulator.setup import Options, alone, simulate

RESULTS = ROOT / "benchmarks" / "results" / "scheduler.json"
HETEROGENEOUS, HOMOGENEOUS = "aws:6x4,dgx-ext:2x8,rtx:3x8", "aws:16x4"


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    label: str
    policy: str
    options: Options = field(default_factory=Options)
    equal: bool = False
    """Whether the policy knows no more than Sia's published implementation."""


STRICT = Options(predictions="given")
SIMPLE = ("fcfs", "sjf", "srtf", "rr", "priority", "preempt", "easy", "conservative", "fair", "spread", "least-loaded")
ROWS = (
    *(Row(name, name) for name in SIMPLE),
    Row("equal", "equal", STRICT),
    Row("adaptive", "adaptive", STRICT),
    Row("adaptive, equal information", "adaptive", STRICT, equal=True),
    Row("adaptive, durations from history", "adaptive"),
    Row("adaptive, profiles from history", "adaptive", Options(predictions="profiles")),
    Row("adaptive, true durations", "adaptive", Options(predictions="truth")),
    Row("oracle", "oracle"),
    Row("adaptive, restarts of 0.05 s", "adaptive", Options(predictions="given", restart=0.05)),
    Row("adaptive, 0.05 s, profiles", "adaptive", Options(predictions="profiles", restart=0.05)),
    Row("adaptive, no resizing", "adaptive", Options(predictions="given", resize=False)),
    Row("adaptive, fixed batches", "adaptive", Options(predictions="given", adapt_batches=False)),
    Row("adaptive, no backfill", "adaptive+strict", STRICT),
    Row("adaptive, spread", "adaptive+spread", STRICT),
)

Figures = Mapping[str, float]


def main(arguments: Sequence[str]) -> int:
    """Simulate the rows that are asked for, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks scheduler", description=__doc__.splitlines()[0])
    parser.add_argument("--rows", help="labels, separated by semicolons (default: all)")
    parser.add_argument("--workloads", help="names, separated by commas (default: all)")
    parser.add_argument("--cluster", help=f"default: {HETEROGENEOUS}, or one that suits the synthetic workloads")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="JSON")
    parser.add_argument("--from", dest="source", action="store_true", help="only print earlier results")
    parser.add_argument("--quick", action="store_true", help="one workload, and few rows")
    options = parser.parse_args(arguments)
    kept: dict[str, dict[str, float]] = json.loads(options.output.read_text()) if options.output.exists() else {}
    rows = _rows(options)
    if not options.source:
        applications, workloads, cluster = _inputs(options)
        for row in rows:
            for workload in workloads:
                key = f"{cluster} | {workload.name} | {row.label}"
                kept[key] = _figures(row, workload, applications, cluster)
                print(f"{key}: {kept[key]['average'] / 3600:.3f} h, {kept[key]['seconds']:.0f} s", flush=True)
                options.output.parent.mkdir(parents=True, exist_ok=True)
                options.output.write_text(json.dumps(kept, indent=1))
    print(*table(kept), sep="\n")
    return 0


def _rows(options: argparse.Namespace) -> list[Row]:
    if options.rows is None:
        return [row for row in ROWS if not options.quick or row.label in ("fcfs", "srtf", "easy", "adaptive")]
    known = {row.label: row for row in ROWS}
    unknown = [label for label in options.rows.split(";") if label not in known]
    if unknown:
        raise SystemExit(f"unknown row {', '.join(unknown)}; choose from: {'; '.join(known)}")
    return [known[label] for label in options.rows.split(";")]


def _inputs(options: argparse.Namespace) -> tuple[Mapping[str, Application], list[Workload], str]:
    place = Path(os.environ.get("FARANDOLE_TRACES") or ROOT.parent / "shared" / "traces" / "profiles.tar.xz")
    if place.exists():
        applications = read_profiles(place)
        workloads, cluster = read_workloads(place, applications), options.cluster or HETEROGENEOUS
    else:
        print(f"{place} does not exist: synthetic workloads are used")
        applications = applications_of(synthetic.profiles())
        files = {f"synthetic-{seed}.csv": synthetic.workload(seed) for seed in range(4)}
        workloads, cluster = workloads_of(files, applications), options.cluster or synthetic.CLUSTER
    if options.workloads:
        workloads = [workload for workload in workloads if workload.name in options.workloads.split(",")]
    return applications, workloads[: 1 if options.quick else None], cluster


def _figures(row: Row, workload: Workload, applications: Mapping[str, Application], text: str) -> dict[str, float]:
    cluster = parse_cluster(text)
    begin = time.process_time()
    oracle = row.policy == NAME
    policy = make_oracle(workload, applications, cluster, Rules()) if oracle else make_policy(row.policy)
    if row.equal:
        policy, applications = EqualInformation(policy, workload), with_one_measurement(applications)
    outcome = simulate(cluster, workload, applications, policy, row.options)
    seconds = time.process_time() - begin
    alone_ = {job.name: alone(job, applications[job.application], cluster) for job in workload.jobs}
    summary = summarise(row.label, cluster, [job_results(workload.name, cluster, outcome, alone_)])
    figures = {name: value for name, value in summary.as_dict().items() if name != "policy"}
    return {**figures, "seconds": seconds}


def table(kept: Mapping[str, Figures]) -> list[str]:
    """Return the lines of a Markdown table for each cluster: average JCT by workload, then means over workloads."""
    lines = []
    for cluster in dict.fromkeys(key.split(" | ")[0] for key in kept):
        rows: dict[str, dict[str, Figures]] = {}
        for key, figures in kept.items():
            if key.startswith(f"{cluster} | "):
                _, workload, label = key.split(" | ")
                rows.setdefault(label, {})[workload] = figures
        names = sorted({workload for row in rows.values() for workload in row})
        short = [name.removeprefix("workload-") for name in names]
        head = ["policy", *short, "mean", "p99", "wait", "makespan", "used", "fairness", "worst", "restarts"]
        lines += [f"{cluster}", "", f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
        lines += [f"| {label} | {' | '.join(_cells(row, names))} |" for label, row in rows.items()]
        lines.append("")
    return lines


def _cells(row: Mapping[str, Figures], names: Sequence[str]) -> list[str]:
    def mean(key: str) -> float:
        return sum(figures[key] for figures in row.values()) / len(row)

    averages = [f"{row[name]['average'] / 3600:.3f}" if name in row else "" for name in names]
    hours = [
        f"{mean(key) / 3600:.{digits}f}"
        for key, digits in (("average", 3), ("p99", 1), ("waiting", 3), ("makespan", 1))
    ]
    others = [
        f"{mean('utilisation'):.0%}",
        f"{mean('fairness'):.2f}",
        f"{mean('fairness_worst'):.1f}",
        f"{mean('restarts'):.1f}",
    ]
    return [*averages, *hours, *others]

"""Case j: how much time compressed gradients save on a slow wire, and how much accuracy they cost."""

from __future__ import annotations

import re
import subprocess
import sys

from benchmarks.cases.base import MB, Case, Ratio
from benchmarks.conductor import Conductor, Contender, Row
from benchmarks.hosts import BedError, bed_of
from benchmarks.peers.base import ROOT
from benchmarks.scope import Scope
from benchmarks.topology import Topology
from benchmarks.training import OURS

NAMES = ("none", "fp16", "bf16", "int8", "topk", "powersgd")
_GIGABIT = 10**9
# Parameters, gradients and residuals of 25 million floats each, and what the backward pass needs.
_BYTES_HELD = 500 * MB
_TRAINING_SECONDS = 1200

# For each example: its name, its script, its arguments, those of a quick run, and the line that it prints in the end.
_TRAININGS = (
    ("digits: test accuracy", "digits.py", (), ("--epochs", "2"), r"test accuracy: ([0-9.]+)"),
    (
        "language model: held-out bits per byte",
        "language_model.py",
        ("--sample", "1"),
        ("--steps", "10", "--width", "32", "--depth", "1", "--limit", "200000"),
        r"held-out text: ([0-9.]+) bits per byte",
    ),
)


def _measure(conductor: Conductor, scope: Scope) -> list[Row]:
    return _measure_steps(conductor, scope) + _measure_accuracy(conductor, scope)


def _measure_steps(conductor: Conductor, scope: Scope) -> list[Row]:
    topology, rows = Topology(2, 1), []
    tokens = 16 if scope.quick else 128
    contenders = [
        Contender(name, "farandole", "step", {"way": OURS, "tokens": tokens, "compression": name}) for name in NAMES
    ]
    try:
        with bed_of(topology.hosts, conductor.folder) as bed:
            try:
                for rate, bits in (("1 Gbit/s", _GIGABIT), ("10 Gbit/s", 10 * _GIGABIT)):
                    bed.shape(bits)
                    keys = {"what": f"a step at {rate}"}
                    rows.append(conductor.measure(topology, contenders, keys, bed=bed, bytes_held=_BYTES_HELD))
            finally:
                # Before the hosts are removed: a worker without a network cannot leave in good order.
                conductor.dismiss(topology)
    except BedError as error:
        conductor.failures.append(f"{topology}: {error}")
        conductor.say(f"    skipped: {error}")
    return rows


def _measure_accuracy(conductor: Conductor, scope: Scope) -> list[Row]:
    """Train the examples on two workers of this host: what they learn does not depend on the wire."""
    rows = []
    for what, script, arguments, quick_arguments, pattern in _TRAININGS:
        row = Row({"what": what})
        for name in NAMES:
            every = (*arguments, *(quick_arguments if scope.quick else ()), "--compression", name)
            row.notes[name] = _train(conductor, script, every, pattern)
            conductor.say(f"    {what} with {name}: {row.notes[name]}")
        rows.append(row)
    return rows


def _train(conductor: Conductor, script: str, arguments: tuple[str, ...], pattern: str) -> str:
    """Return the number that a run of an example ends with, or that it failed."""
    example = str(ROOT / "examples" / script)
    command = (sys.executable, "-m", "farandole", "run", "-np", "2", sys.executable, example, *arguments)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TRAINING_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        conductor.failures.append(f"{script} did not end within {_TRAINING_SECONDS} s")
        return "failed"
    found = re.search(pattern, done.stdout)
    if done.returncode or found is None:
        conductor.failures.append(f"{script} {' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
        return "failed"
    return found[1]


COMPRESSION = Case(
    letter="j",
    title="a training step of 25 million parameters on 2 hosts with compressed gradients, and what the examples learn",
    keys=("what",),
    run=_measure,
    ratios=(Ratio("none / int8", ("none",), "int8"), Ratio("none / powersgd", ("none",), "powersgd")),
)

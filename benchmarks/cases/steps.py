"""Case h: a whole training step."""

from __future__ import annotations

from benchmarks.cases.base import Case, Ratio
from benchmarks.conductor import Conductor, Contender, Row
from benchmarks.scope import Scope
from benchmarks.topology import Topology
from benchmarks.training import ALONE, GLOO_DDP, OUR_DDP, OURS, WAYS


def _measure(conductor: Conductor, scope: Scope) -> list[Row]:
    rows = []
    for tokens in (16,) if scope.quick else (128, 512):
        # All ways run in the same processes: another library's workers would compute the same.
        contenders = [Contender(way, "farandole", "step", {"way": way, "tokens": tokens}) for way in WAYS]
        row = conductor.measure(Topology(1, 2), contenders, {"tokens": tokens, "result": "step"})
        rows += [row, _efficiency(row, tokens)]
    return rows


def _efficiency(step: Row, tokens: int) -> Row:
    """Return, as notes, the throughput of two workers as a part of twice that of one process."""
    row = Row({"tokens": tokens, "result": "efficiency"})
    alone = step.median(ALONE)
    for way in step.seconds:
        together = step.median(way)
        if alone and together:
            row.notes[way] = f"{alone / together:.0%}"
    return row


STEPS = Case(
    letter="h",
    title="a training step of a transformer of 25 million parameters, 2 workers, by tokens in a worker's batch",
    keys=("tokens", "result"),
    run=_measure,
    ratios=(
        Ratio("DDP on gloo / DistributedOptimizer", (GLOO_DDP,), OURS),
        Ratio("DDP on gloo / DDP on farandole", (GLOO_DDP,), OUR_DDP),
    ),
)

"""Case c: the gradients of ResNet-50, alone and behind a computation."""

from __future__ import annotations

from math import prod

from benchmarks.cases.base import ARENA, COPY_BOUND, GLOO, Case, Ratio, copy_bound, everybody
from benchmarks.conductor import Conductor, Row
from benchmarks.gradients import resnet50_shapes
from benchmarks.scope import Scope
from benchmarks.topology import Topology

_TWO = Topology(1, 2)
_COMMUNICATION, _COMPUTATION, _BOTH = "communication alone", "computation alone", "both"


def _measure(conductor: Conductor, scope: Scope) -> list[Row]:
    units = 1 if scope.quick else 8
    size = 4 * sum(map(prod, resnet50_shapes()))
    alone = conductor.measure(_TWO, [copy_bound(size), *everybody("gradients")], {"step": _COMMUNICATION})
    computation = conductor.measure(
        _TWO, everybody("gradients", communicate=False, compute_units=units), {"step": _COMPUTATION}
    )
    both = conductor.measure(_TWO, everybody("gradients", compute_units=units), {"step": _BOTH})
    return [alone, computation, both, _visible(computation, both)]


def _visible(computation: Row, both: Row) -> Row:
    """Return, as notes, the share of the step with both that exceeds the computation alone."""
    row = Row({"step": "visible share of the step"})
    for label in both.seconds:
        whole, part = both.median(label), computation.median(label)
        if whole and part:
            row.notes[label] = f"{max(0.0, 1 - part / whole):.0%}"
    return row


GRADIENTS = Case(
    letter="c",
    title="the 161 gradients of ResNet-50 (102 MB of float32), last to first, 2 workers",
    keys=("step",),
    run=_measure,
    ratios=(Ratio("farandole / copy bound", (ARENA,), COPY_BOUND), Ratio("gloo / farandole", (GLOO,))),
)

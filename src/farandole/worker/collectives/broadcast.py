"""broadcast: every rank gets one rank's tensor."""

from __future__ import annotations

from farandole.base.request_kind import Kind
from farandole.worker.collectives.declaration import (
    NAME,
    PROCESS_SET,
    Collective,
    Options,
    Order,
    Parameter,
    Required,
    Tensor,
)
from farandole.worker.collectives.framework import Framework
from farandole.worker.collectives.gradient_rules import CallFacts, GradientRule, OnlyAt, Plan
from farandole.worker.core.dtype import Average, ElementType


def _check(front: Framework, tensor: Tensor, dtype: ElementType, name: str, options: Options) -> None:
    """Accept every tensor; the engine checks whether the root is a member."""


def _plan(facts: CallFacts) -> Plan:
    """The average of the gradients on the root, zero elsewhere."""
    return Plan("allreduce", {"op": Average, "prescale": 1.0, "postscale": 1.0}, (OnlyAt(facts.options["root"]),))


BROADCAST = Collective(
    kind=Kind.BROADCAST,
    summary="Return the root's {tensor} on every rank of a process set.",
    differentiable="The gradient is the average of the gradients on the root, and zero elsewhere.",
    parameters=(
        Parameter(
            "root_rank",
            "int",
            Required,
            "the rank whose {tensor} is sent; a rank in the world, also for a process set.",
            "root",
        ),
        NAME,
        PROCESS_SET,
    ),
    gradient=GradientRule(_plan),
    check=_check,
    has_in_place=True,
    # Scripts begin with this call, and its result is replaced when the others' state comes.
    before_world=True,
    horovod={
        "tensorflow": Order("root_rank name ignore_name_scope process_set"),
        "mxnet": Order("root_rank name priority process_set"),
        "keras": Order("root_rank name"),
    },
)

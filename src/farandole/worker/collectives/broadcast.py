"""broadcast: every rank gets one rank's tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farandole.worker.collectives.declaration import (
    NAME,
    PROCESS_SET,
    Collective,
    Options,
    Parameter,
    Required,
    Result,
    Tensor,
)
from farandole.worker.collectives.gradient_rules import CallFacts, GradientRule, Nothing, Plan, Zero
from farandole.worker.core.dtype import Average, ElementType, Kind

if TYPE_CHECKING:
    from farandole.worker.collectives.front_end import FrontEnd


def _check(front: FrontEnd[Tensor], tensor: Tensor, dtype: ElementType, name: str, options: Options) -> None:
    """Take every tensor; the engine knows whether the root is a member."""


def _plan(facts: CallFacts) -> Plan:
    """The average of the gradients on the root, zero elsewhere."""
    is_root = facts.ranks[facts.position] == facts.options["root"]
    own = Nothing() if is_root else Zero()
    return Plan("allreduce", {"op": Average, "prescale": 1.0, "postscale": 1.0}, (own,))


BROADCAST = Collective(
    name="broadcast",
    kind=Kind.BROADCAST,
    summary="Return the root's {tensor} on every rank of a process set.",
    differentiable="The gradient is the average of the gradients on the root, and zero elsewhere.",
    parameters=(
        Parameter("root_rank", "int", Required, "whose {tensor}; a rank in the world, also for a process set.", "root"),
        NAME,
        PROCESS_SET,
    ),
    result=Result.SAME,
    gradient=GradientRule(_plan),
    check=_check,
    has_in_place=True,
    # Scripts begin so, and what they get is replaced when the others' state comes.
    before_world=True,
)

"""allgather: every rank gets the rows of all ranks, in rank order."""

from __future__ import annotations

from farandole.base.request_kind import Kind
from farandole.errors import InvalidRequestError
from farandole.worker.collectives.declaration import (
    NAME,
    PROCESS_SET,
    Collective,
    Options,
    Order,
    Received,
    Tensor,
)
from farandole.worker.collectives.framework import Framework
from farandole.worker.collectives.gradient_rules import CallFacts, GradientRule, Plan, TakeRows
from farandole.worker.core.dtype import Average, ElementType


def _check(front: Framework, tensor: Tensor, dtype: ElementType, name: str, options: Options) -> None:
    if len(tensor.shape) == 0:
        raise InvalidRequestError(
            f"{name}: a tensor without dimensions (a rank-zero tensor) cannot be gathered, which joins along the first "
            "one. Pass tensor.reshape(1)."
        )


def _rows_only(front: Framework, received: Received, options: Options) -> Tensor:
    return received.rows


def _plan(facts: CallFacts) -> Plan:
    """The average of the gradients, of which each rank takes the rows of its input."""
    own = [TakeRows(counts, facts.position()) for counts in facts.received]
    return Plan("allreduce", {"op": Average, "prescale": 1.0, "postscale": 1.0}, own)


ALLGATHER = Collective(
    kind=Kind.ALLGATHER,
    summary="Concatenate the {tensor}s of all ranks of a process set along the first dimension, in rank order. Ranks "
    "may differ in the first dimension only, which may be 0.",
    differentiable="The gradient is the average of the gradients, of which each rank takes the rows of its input.",
    parameters=(NAME, PROCESS_SET),
    gradient=GradientRule(_plan),
    check=_check,
    returns=_rows_only,
    returns_later=_rows_only,
    has_grouped=True,
    horovod={
        "tensorflow": Order("name ignore_name_scope process_set"),
        "mxnet": Order("name priority process_set"),
        "keras": Order("name"),
    },
)

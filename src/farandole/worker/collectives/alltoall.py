"""alltoall: every rank sends some rows to every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from farandole.base.request_kind import Kind
from farandole.errors import InvalidRequestError
from farandole.worker.collectives.declaration import (
    NAME,
    PROCESS_SET,
    Collective,
    Options,
    Order,
    Parameter,
    Received,
    Tensor,
)
from farandole.worker.collectives.framework import Framework
from farandole.worker.collectives.gradient_rules import CallFacts, GradientRule, PadRows, Plan
from farandole.worker.collectives.rows import rows_to_send
from farandole.worker.core.dtype import ElementType


def _check(front: Framework, tensor: Tensor, dtype: ElementType, name: str, options: Options) -> None:
    if len(tensor.shape) == 0:
        raise InvalidRequestError(
            f"{name}: a tensor without dimensions (a rank-zero tensor) has no rows to exchange. Pass tensor.reshape(1)."
        )


def _fields(front: Framework, options: Options, shape: Sequence[int], size: int) -> Options:
    return {"splits": rows_to_send(options["splits"], shape[0], size, front.splits)}


def _rows_and_counts(front: Framework, received: Received, options: Options) -> tuple[Tensor, Tensor]:
    return received.rows, front.whole_numbers(received.counts, options["splits"])


def _rows(front: Framework, received: Received, options: Options) -> Any:
    return received.rows if options["splits"] is None else _rows_and_counts(front, received, options)


def _plan(facts: CallFacts) -> Plan:
    """The rows' gradients, sent back to the ranks that sent the rows; rows that were not sent have zero."""
    return Plan("alltoall", {"splits": facts.received[0]}, (PadRows(facts.shapes[0][0]),))


ALLTOALL = Collective(
    kind=Kind.ALLTOALL,
    summary="Send rows of the {tensor} to every rank of a process set, and return those that all ranks sent to this "
    "one. Ranks may differ in the first dimension only.",
    differentiable="Gradients are sent back to the ranks that sent the rows; rows that were not sent have zero.",
    parameters=(
        Parameter(
            "splits",
            "{Tensor} | Iterable[int] | None",
            None,
            "the number of rows for each rank, in rank order; rows that are left over are not sent. A 1-D {tensor} "
            "of int32 or a list. None gives equally many to each, which the first dimension must allow.",
        ),
        NAME,
        PROCESS_SET,
    ),
    gradient=GradientRule(_plan),
    check=_check,
    fields=_fields,
    returns=_rows,
    returns_later=_rows_and_counts,
    horovod={
        "tensorflow": Order("splits name ignore_name_scope process_set"),
        "mxnet": Order("splits name priority process_set"),
        "keras": None,
    },
    returned=(
        "Without splits, the rows received, in rank order. With splits, a pair of these and `received_splits`: the "
        "number of rows from each rank, int32 (int64 if a number does not fit), on the device of `splits`."
    ),
)

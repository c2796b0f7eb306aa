"""reduce: one rank gets the reduction of all ranks' tensors."""

from __future__ import annotations

from farandole.base.request_kind import Kind
from farandole.errors import InvalidRequestError
from farandole.worker.collectives.declaration import (
    NAME,
    POSTSCALE,
    PRESCALE,
    PROCESS_SET,
    Collective,
    Options,
    Order,
    Parameter,
    Required,
    Tensor,
)
from farandole.worker.collectives.framework import Framework
from farandole.worker.collectives.gradient_rules import CallFacts, GradientRule, Nothing, OnlyAt, Plan
from farandole.worker.collectives.reduction_op import check_reducible
from farandole.worker.core.dtype import Adasum, Average, ElementType, Sum


def _check(front: Framework, tensor: Tensor, dtype: ElementType, name: str, options: Options) -> None:
    check_reducible(front, tensor, dtype, options["op"])
    _check_options(options)


def _check_options(options: Options) -> None:
    if options["op"] == Adasum:
        raise InvalidRequestError(
            "reduce does not support Adasum, which needs whole tensors on all ranks. Use allreduce(op=hvd.Adasum)."
        )


def _plan(facts: CallFacts) -> Plan:
    """The gradient of the root's result, on every rank; the results of other ranks do not contribute.

    A broadcast would have the same result, but its gradient is Horovod's average, not the transpose.
    """
    if facts.options["op"] not in (Average, Sum):
        raise InvalidRequestError(
            "reduce has a gradient for Average and Sum only. Use allreduce, which has one for Min, Max and Product too."
        )
    options = {name: facts.options[name] for name in ("op", "prescale", "postscale")}
    return Plan("allreduce", options, (Nothing(),) * len(facts.shapes), before=OnlyAt(facts.options["root"]))


REDUCE = Collective(
    kind=Kind.REDUCE,
    summary="Reduce {a tensor} over all ranks of a process set, and return the result on the root. Other ranks return "
    "their input.",
    differentiable=(
        "There is a gradient for Average and Sum: that of the root's result, on every rank. The results of other ranks "
        "do not contribute."
    ),
    parameters=(
        Parameter(
            "root_rank",
            "int",
            Required,
            "the rank that gets the result; a rank in the world, also for a process set.",
            "root",
        ),
        NAME,
        Parameter("op", "int", Average, "Average (the default), Sum, Min, Max or Product.", "op"),
        PROCESS_SET,
        PRESCALE,
        POSTSCALE,
    ),
    gradient=GradientRule(_plan),
    check=_check,
    check_options=_check_options,
    has_grouped=True,
    has_in_place=True,
    horovod={"keras": Order("root_rank name op")},
)

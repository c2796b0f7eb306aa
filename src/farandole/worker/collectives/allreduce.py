"""allreduce: every rank gets the reduction of all ranks' tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from farandole.base.request_kind import Kind
from farandole.worker.collectives.declaration import (
    COMPRESSION,
    NAME,
    POSTSCALE,
    PRESCALE,
    PROCESS_SET,
    Collective,
    Options,
    Order,
    Parameter,
    Tensor,
)
from farandole.worker.collectives.framework import Framework
from farandole.worker.collectives.gradient_rules import CallFacts, GradientRule, Maths, Nothing, Plan
from farandole.worker.collectives.reduction_op import check_reducible, op_asked_for
from farandole.worker.core.dtype import DType, ElementType, Max, Min, Product, Sum


def _settle(options: Options) -> None:
    average = options.pop("average", None)
    if average is not None or options["op"] is None:
        # The frames above this one: the form's runner, the function that the user calls, and the user's own.
        options["op"] = op_asked_for(options["op"], average, stacklevel=4)


def _check(front: Framework, tensor: Tensor, dtype: ElementType, name: str, options: Options) -> None:
    if dtype is DType.BOOL:
        check_reducible(front, tensor, dtype, options["op"])


# --- gradient ----------------------------------------------------------------------------------------------------


def _is_not_linear(options: Mapping[str, Any]) -> bool:
    return options["op"] in (Min, Max, Product)


def _plan(facts: CallFacts) -> Plan:
    """Average, Sum and Adasum: the same reduction of the gradients."""
    return Plan("allreduce", facts.options, (Nothing(),) * len(facts.shapes))


def _program(maths: Maths, facts: CallFacts, inputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> Sequence[Tensor]:
    if facts.options["op"] == Product:
        return _product_gradients(maths, facts, inputs, gradients)
    return _extreme_gradients(maths, facts, inputs, gradients)


def _extreme_gradients(
    maths: Maths, facts: CallFacts, inputs: Sequence[Tensor], gradients: Sequence[Tensor]
) -> list[Tensor]:
    """Divide the sum of the gradients equally among the ranks that have the minimum or maximum."""
    op, prescale, postscale = (facts.options[name] for name in ("op", "prescale", "postscale"))
    # A negative factor turns the largest into the smallest.
    reached = op if prescale >= 0 else Min + Max - op
    extremes = maths.reduce(inputs, reached)
    mine = [maths.equal(tensor, extreme) for tensor, extreme in zip(inputs, extremes, strict=True)]
    sums = maths.reduce([*gradients, *mine], Sum)
    totals, owners = sums[: len(inputs)], sums[len(inputs) :]
    return [
        # No rank has an element that equals NaN.
        total * own * (prescale * postscale) / maths.where(owner, owner, 1)
        for total, own, owner in zip(totals, mine, owners, strict=True)
    ]


def _product_gradients(
    maths: Maths, facts: CallFacts, inputs: Sequence[Tensor], gradients: Sequence[Tensor]
) -> list[Tensor]:
    """Multiply the sum of the gradients by the product of the other ranks' elements.

    All elements are gathered for this, although dividing the product by the rank's own element would need less memory:
    only this form can be differentiated again where elements are zero.
    """
    prescale, postscale = facts.options["prescale"], facts.options["postscale"]
    position = facts.position()
    others_after = facts.size() - position - 1
    own = [maths.with_zero_rows((tensor * prescale)[None], position, others_after) for tensor in inputs]
    sums = maths.reduce([*gradients, *own], Sum)
    totals, gathered = sums[: len(inputs)], sums[len(inputs) :]
    return [
        total
        * maths.product_of_rows(rows[:position])
        * maths.product_of_rows(rows[position + 1 :])
        * (prescale * postscale)
        for total, rows in zip(totals, gathered, strict=True)
    ]


# --- declaration -------------------------------------------------------------------------------------------------

ALLREDUCE = Collective(
    kind=Kind.ALLREDUCE,
    summary="Reduce {a tensor} over all ranks of a process set and return the result, the same on all of them.",
    differentiable=(
        "The gradient of Average, Sum and Adasum is the same reduction of the gradients; of Min and Max, the sum of "
        "the gradients where this rank's element is the result, shared equally; of Product, the sum of "
        "the gradients times the product of the other ranks' elements."
    ),
    parameters=(
        Parameter("average", "bool | None", None, "Horovod's older way to choose between Average and Sum."),
        NAME,
        Parameter(
            COMPRESSION.name,
            COMPRESSION.annotation,
            COMPRESSION.default,
            "the compression of the {tensor}, such as `Compression.fp16`. What `Compression.int8` and the like do "
            "not send is lost, unless they remember it: see `Recipe.with_feedback`.",
            plain_only=True,
        ),
        Parameter(
            "op",
            "int | None",
            None,
            "Average (the default), Sum, Adasum, Min, Max or Product. The average of integers is truncated toward "
            'zero. Of truth values, Sum and Max are "or", Product and Min are "and".',
            "op",
        ),
        PRESCALE,
        POSTSCALE,
        PROCESS_SET,
    ),
    gradient=GradientRule(_plan, _program, _is_not_linear),
    check=_check,
    settle=_settle,
    has_grouped=True,
    has_in_place=True,
    horovod={
        "tensorflow": Order(
            "average device_dense device_sparse compression op prescale_factor postscale_factor name process_set "
            "ignore_name_scope",
            "average device_dense device_sparse compression op prescale_factor postscale_factor process_set "
            "ignore_name_scope name",
        ),
        "tensorflow.mpi_ops": Order("name op prescale_factor postscale_factor ignore_name_scope process_set"),
        "mxnet": Order("average name priority prescale_factor postscale_factor process_set op compression"),
        "keras": Order("name average prescale_factor postscale_factor op compression"),
    },
)

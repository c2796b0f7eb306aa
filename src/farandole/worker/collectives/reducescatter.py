"""reducescatter: every rank gets its rows of the reduction of all ranks' tensors."""

from __future__ import annotations

from farandole.base.request_kind import Kind
from farandole.errors import InvalidRequestError
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
from farandole.worker.collectives.gradient_rules import CallFacts, GradientRule, Plan, Scale
from farandole.worker.collectives.reduction_op import check_reducible
from farandole.worker.core.dtype import Adasum, Average, ElementType, Sum


def _check(front: Framework, tensor: Tensor, dtype: ElementType, name: str, options: Options) -> None:
    check_reducible(front, tensor, dtype, options["op"])
    if len(tensor.shape) == 0:
        raise InvalidRequestError(
            f"{name}: Reducescatter does not support scalar inputs: there is no first dimension to scatter along. Pass "
            "tensor.reshape(1), or use allreduce."
        )
    _check_options(options)


def _check_options(options: Options) -> None:
    if options["op"] == Adasum:
        raise InvalidRequestError(
            "Reducescatter currently only supports AVERAGE and SUM, and here also MIN, MAX and PRODUCT, but not "
            "ADASUM, which needs whole tensors. Use allreduce(op=hvd.Adasum)."
        )


def _plan(facts: CallFacts) -> Plan:
    """All ranks' gradients, gathered; for Sum times the number of ranks, as in Horovod."""
    op, prescale, postscale = (facts.options[name] for name in ("op", "prescale", "postscale"))
    if op not in (Average, Sum):
        raise InvalidRequestError(
            "reducescatter has a gradient for Average and Sum only. Use allreduce, which has one for Min, Max and "
            "Product too, and take this rank's rows."
        )
    scale = Scale(prescale * postscale, facts.size() if op == Sum else 1)
    return Plan("allgather", {}, (scale,) * len(facts.shapes))


REDUCESCATTER = Collective(
    kind=Kind.REDUCESCATTER,
    summary="Reduce {a tensor} over all ranks of a process set, and return this rank's rows of the result. The first "
    "dimension is divided among the ranks, in rank order; if it cannot be divided equally, the first ranks get one row "
    "more.",
    differentiable=(
        "There is a gradient for Average and Sum: all ranks' gradients, gathered; for Sum times the number of ranks, "
        "as in Horovod."
    ),
    parameters=(
        NAME,
        COMPRESSION,
        Parameter("op", "int", Average, "Average (the default), Sum, Min, Max or Product.", "op"),
        PROCESS_SET,
        PRESCALE,
        POSTSCALE,
    ),
    gradient=GradientRule(_plan),
    check=_check,
    check_options=_check_options,
    has_grouped=True,
    horovod={
        "tensorflow": Order(
            "device_dense compression op name process_set ignore_name_scope prescale_factor postscale_factor",
            "device_dense compression op process_set ignore_name_scope name prescale_factor postscale_factor",
        ),
        "tensorflow.mpi_ops": Order("name op ignore_name_scope process_set prescale_factor postscale_factor"),
        "mxnet": Order("op name priority process_set prescale_factor postscale_factor compression"),
        "keras": Order("name op"),
    },
)

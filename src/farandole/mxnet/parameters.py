"""Broadcasting the values of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mxnet as mx
import numpy as np

from farandole.errors import InvalidRequestError
from farandole.mxnet.functions import broadcast_
from farandole.mxnet.mxnet_engine import lay_out_plainly
from farandole.numpy.variables import check_alike
from farandole.worker.core.group import ProcessSet, global_process_set

_DEFERRED = "not initialized yet"


def broadcast_parameters(
    params: Any,
    root_rank: int = 0,
    prefix: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Broadcast the root's values of parameters. A collective.

    A gluon parameter whose shape is not known yet gets the root's values as soon as it is initialized, in the first
    forward pass, which all ranks must run.

    Args:
        params: `net.collect_params()`, or a dict of arrays, such as the results of `module.get_params()`.
        root_rank: the rank, in the world, whose values all ranks get.
        prefix: the prefix of the names by which ranks' parameters match. Each of several calls for deferred parameters
            needs its own.
        process_set: the ranks that take part.

    Raises:
        ValueError: the ranks' parameters differ in number, name, shape or type.

    Example:
        >>> hvd.broadcast_parameters(net.collect_params(), root_rank=0)  # doctest: +SKIP
    """
    if not isinstance(params, (Mapping, mx.gluon.ParameterDict)):
        raise InvalidRequestError(
            f"broadcast_parameters takes net.collect_params() or a dict of arrays, not {type(params).__name__}."
        )
    named = sorted(params.items())
    base = f"broadcast_parameters.{prefix or ''}"
    described = [(name, _described(parameter)) for name, parameter in named]
    check_alike(described, root_rank, process_set, name=base, what="parameters")
    arrays = []
    for place, (_, parameter) in enumerate(named):
        name = f"{base}{place}"
        if _is_deferred(parameter):
            _broadcast_when_initialized(parameter, root_rank, name, process_set)
        else:
            arrays += _broadcast(parameter, root_rank, name, process_set)
    for array in arrays:
        array.wait_to_read()


def _broadcast(parameter: Any, root_rank: int, name: str, process_set: ProcessSet) -> list[mx.nd.NDArray]:
    """Begin to broadcast a parameter, or an array, and return its arrays: one for each device."""
    first, *others = [parameter] if isinstance(parameter, mx.nd.NDArray) else parameter.list_data()
    lay_out_plainly(first)
    broadcast_(first, root_rank, name, process_set=process_set)
    for other in others:
        first.copyto(other)
    return [first, *others]


def _broadcast_when_initialized(parameter: Any, root_rank: int, name: str, process_set: ProcessSet) -> None:
    """Broadcast a parameter once, as soon as gluon has initialized it."""
    initialize = parameter._init_impl

    def initialize_and_broadcast(*arguments: Any, **named: Any) -> None:
        del parameter._init_impl  # What follows is the class's again.
        initialize(*arguments, **named)
        with mx.autograd.pause():  # The first batch may well be recorded.
            _broadcast(parameter, root_rank, name, process_set)

    parameter._init_impl = initialize_and_broadcast


def _is_deferred(parameter: Any) -> bool:
    return isinstance(parameter, mx.gluon.Parameter) and bool(parameter._deferred_init)


def _described(parameter: Any) -> str:
    if _is_deferred(parameter):
        return _DEFERRED
    array = parameter if isinstance(parameter, mx.nd.NDArray) else parameter.list_data()[0]
    return f"{np.dtype(array.dtype).name}{list(array.shape)}"

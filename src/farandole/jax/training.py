"""Gradients of functions and optax updates that are averaged over all workers; broadcasting parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec

import jax
import jax.numpy as jnp

from farandole.errors import InvalidRequestError
from farandole.jax.arrays import Arrays
from farandole.jax.compression import Compression
from farandole.jax.elastic import in_loop
from farandole.jax.functions import broadcast_async, grouped_allreduce
from farandole.jax.parameter_check import OptimizerCheck
from farandole.jax.trees import Tree, grouped_allreduce_with_residuals
from farandole.numpy.variables import check_alike
from farandole.worker.collectives.compression import (
    NO_POWERSGD,
    Compressor,
    Feedback,
    PowerSGD,
    Recipe,
    check_compression,
)
from farandole.worker.collectives.forms import synchronize
from farandole.worker.core.basics import has_step_loop
from farandole.worker.core.dtype import Average
from farandole.worker.core.group import ProcessSet, global_process_set

if TYPE_CHECKING:
    import optax

P = ParamSpec("P")


def distributed_value_and_grad(
    fun: Callable[P, Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    *,
    op: int = Average,
    compression: Any = Compression.none,
    process_set: ProcessSet = global_process_set,
) -> Callable[P, tuple[Any, Any]]:
    """Return `jax.value_and_grad(fun)` with gradients that are reduced over all ranks; the value is not reduced.

    Args:
        fun: a function whose first output is a scalar.
        argnums: the same as for `jax.value_and_grad`.
        has_aux: the same as for `jax.value_and_grad`.
        op: the reduction of the gradients, such as Average.
        compression: the form in which gradients are sent.
        process_set: the ranks that take part.

    Example:
        >>> step = jax.jit(hvd.distributed_value_and_grad(loss))
        >>> value, gradients = step(params, batch)
    """
    check_compression(compression)
    own = jax.value_and_grad(fun, argnums, has_aux)

    @wraps(fun)
    def value_and_grad(*arguments: P.args, **named: P.kwargs) -> tuple[Any, Any]:
        value, gradients = own(*arguments, **named)
        return value, _reduce(gradients, op, compression, process_set)

    return value_and_grad


def distributed_grad(
    fun: Callable[P, Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    *,
    op: int = Average,
    compression: Any = Compression.none,
    process_set: ProcessSet = global_process_set,
) -> Callable[P, Any]:
    """Return `jax.grad(fun)` with gradients that are reduced over all ranks.

    The arguments are the same as for `distributed_value_and_grad`.

    Example:
        >>> jax.jit(hvd.distributed_grad(lambda x: (x**2).sum()))(jnp.array([1.0, 2.0]))
        Array([2., 4.], dtype=float32)
    """
    both = distributed_value_and_grad(fun, argnums, has_aux, op=op, compression=compression, process_set=process_set)

    @wraps(fun)
    def grad(*arguments: P.args, **named: P.kwargs) -> Any:
        value, gradients = both(*arguments, **named)
        return (gradients, value[1]) if has_aux else gradients

    return grad


def _reduce(gradients: Any, op: int, compression: Any, process_set: ProcessSet) -> Any:
    if not has_step_loop():
        return grouped_allreduce(gradients, op=op, compression=compression, process_set=process_set)
    pairs = jax.tree.map(compression.compress, gradients)
    compressed = jax.tree.map(lambda _, pair: pair[0], gradients, pairs)
    reduced = in_loop.reduce_gradients(compressed, op=op, process_set=process_set)
    return jax.tree.map(lambda array, pair: compression.decompress(array, pair[1]), reduced, pairs)


class DistributedState(NamedTuple):
    """The state of `distributed`.

    Attributes:
        inner: the wrapped optimizer's state.
        residuals: the part of each array that a compression with a memory has not sent yet; empty with others.
    """

    inner: Any
    residuals: Any


def distributed(
    optimizer: optax.GradientTransformation,
    *,
    op: int = Average,
    compression: Any = Compression.none,
    process_set: ProcessSet = global_process_set,
) -> optax.GradientTransformationExtraArgs:
    """Return an optax optimizer that reduces gradients over all ranks, and then does the same as `optimizer`.

    All gradients are reduced together. With a compression that does not send everything, such as `Compression.int8`,
    the state contains the unsent rest, which is added to the next gradients.

    Args:
        optimizer: an optax optimizer. The result may be wrapped in `optax.MultiSteps`; then gradients are reduced in
            each of its passes.
        op: the reduction of the gradients, such as Average.
        compression: the form in which gradients are sent.
        process_set: the ranks that take part.

    Raises:
        ValueError: the compression is not supported here.

    Example:
        >>> optimizer = hvd.distributed(optax.adam(1e-3 * hvd.size()))
        >>> state = optimizer.init(params)
        >>> updates, state = optimizer.update(gradients, state, params)
    """
    import optax

    if isinstance(compression, Feedback):
        compression = compression.recipe
    if isinstance(compression, PowerSGD):
        raise InvalidRequestError(NO_POWERSGD)
    is_cast = isinstance(compression, type) and issubclass(compression, Compressor)
    if not is_cast and not isinstance(compression, Recipe):
        raise InvalidRequestError(f"compression must be one of hvd.Compression, not {compression!r}.")
    remembers = isinstance(compression, Recipe)
    wrapped = optax.with_extra_args_support(optimizer)
    check = OptimizerCheck(process_set)

    def init(params: Any) -> DistributedState:
        check.remember(params)
        zeros = jax.tree.map(lambda array: jnp.zeros(array.shape, jnp.float32), params) if remembers else ()
        return DistributedState(wrapped.init(params), zeros)

    def update(updates: Any, state: DistributedState, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        check.step(params)
        residuals = state.residuals
        if remembers and has_step_loop():
            raise InvalidRequestError(
                "a loop of hvd.elastic.steps keeps gradients until the step counts, and cannot send a part of them: "
                "pass another compression."
            )
        if remembers:
            updates, residuals = grouped_allreduce_with_residuals(updates, residuals, compression, op, process_set)
        else:
            updates = _reduce(updates, op, compression, process_set)
        updates, inner = wrapped.update(updates, state.inner, params, **extra)
        return updates, DistributedState(inner, residuals)

    return optax.GradientTransformationExtraArgs(init, update)


def broadcast_parameters(params: Tree, root_rank: int = 0, process_set: ProcessSet = global_process_set) -> Tree:
    """Return the root's arrays on every rank, in the structure of `params`.

    Args:
        params: arrays in any structure: parameters, the state of an optimizer, `nnx.state(model)`. Numbers become
            arrays.
        root_rank: the rank, in the world, whose values all ranks get.
        process_set: the ranks that take part.

    Raises:
        ValueError: the ranks' arrays differ in number, place in the structure, shape or type.

    Example:
        >>> params = hvd.broadcast_parameters(params)
    """
    paths, structure = jax.tree_util.tree_flatten_with_path(params)
    front = Arrays()
    arrays = [front.accept(leaf, False) for _, leaf in paths]
    described = [
        (jax.tree_util.keystr(path), f"{array.dtype.name}{list(array.shape)}")
        for (path, _), array in zip(paths, arrays, strict=True)
    ]
    check_alike(described, root_rank, process_set, name="broadcast_parameters", what="arrays")
    handles = [
        broadcast_async(array, root_rank, name=f"broadcast_parameters.{index}", process_set=process_set)
        for index, array in enumerate(arrays)
    ]
    received: Tree = jax.tree_util.tree_unflatten(structure, [synchronize(handle) for handle in handles])
    return received

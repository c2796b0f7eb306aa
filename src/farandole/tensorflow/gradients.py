"""The gradients of the plugin's ops, as `farandole.collectives` declares them for all front ends.

TensorFlow asks for them by the names of the ops. Each is made of collectives again, so all ranks have to ask.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from farandole.core import basics
from farandole.core.dtype import Average, Max, Min, Product, Sum
from farandole.errors import InvalidRequestError
from farandole.tensorflow import plugin

GradientFunction = Callable[..., Any]


def _gradient_of(name: str) -> Callable[[GradientFunction], GradientFunction]:
    """Register the gradient function of an op, which gets each gradient in its result's type.

    TensorFlow may give zeros of float32 for the results that are not used, and passes on `output_gradients` in whatever
    type the user has.
    """

    def register(function: GradientFunction) -> GradientFunction:
        def typed(op: Any, *gradients: Any) -> Any:
            pairs = zip(gradients, op.outputs, strict=True)
            return function(op, *(_typed(gradient, result.dtype) for gradient, result in pairs))

        tf.RegisterGradient(f"Farandole{name}")(typed)
        return function

    return register


def _typed(gradient: Any, dtype: Any) -> Any:
    return gradient if gradient is None or gradient.dtype == dtype else tf.cast(gradient, dtype)


# --- reductions ----------------------------------------------------------------------------------------------------


@_gradient_of("Allreduce")
def _allreduce(op: Any, gradient: Any) -> Any:
    """Average, Sum and Adasum: the same reduction of the gradient."""
    kind = op.get_attr("reduce_op")
    if kind in (Min, Max):
        return _of_extreme(op, op.inputs[0], op.outputs[0], gradient)
    if kind == Product:
        return _of_product(op, op.inputs[0], gradient)
    return _reduce(op, gradient, kind, op.get_attr("prescale"), op.get_attr("postscale"))


@_gradient_of("GroupedAllreduce")
def _grouped_allreduce(op: Any, *gradients: Any) -> list[Any]:
    """As for each tensor by itself."""
    kind = op.get_attr("reduce_op")
    if kind in (Min, Max):
        triples = zip(op.inputs, op.outputs, gradients, strict=True)
        return [_of_extreme(op, tensor, result, gradient) for tensor, result, gradient in triples]
    if kind == Product:
        return [_of_product(op, tensor, gradient) for tensor, gradient in zip(op.inputs, gradients, strict=True)]
    dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
    reduced = _ops().farandole_grouped_allreduce(
        dense,
        reduce_op=kind,
        prescale=op.get_attr("prescale"),
        postscale=op.get_attr("postscale"),
        process_set_id=op.get_attr("process_set_id"),
        **_name("GroupedAllreduce", dense[0]),
    )
    return list(reduced)


def _of_extreme(op: Any, tensor: Any, result: Any, gradient: Any) -> Any:
    """Give the sum of the gradients to the ranks that have the extreme element, in equal shares."""
    _refuse_factors(op)
    mine = tf.cast(tf.equal(tensor, result), gradient.dtype)
    return mine * _reduce(op, gradient, Sum) / _reduce(op, mine, Sum)


def _of_product(op: Any, tensor: Any, gradient: Any) -> Any:
    """Multiply the sum of the gradients with the product of the other ranks' elements, also where some are 0."""
    _refuse_factors(op)
    rows = _gather(op, tensor[None])
    position = _position(op)
    others = tf.concat([rows[:position], rows[position + 1 :]], 0)
    return _reduce(op, gradient, Sum) * tf.reduce_prod(others, 0)


def _refuse_factors(op: Any) -> None:
    if float(op.get_attr("prescale")) != 1.0 or float(op.get_attr("postscale")) != 1.0:
        raise InvalidRequestError("allreduce with Min, Max or Product and factors has no gradient. Multiply outside.")


@_gradient_of("Reducescatter")
def _reducescatter(op: Any, gradient: Any) -> Any:
    """Gather all ranks' gradients; for Sum times the number of ranks, as in Horovod."""
    kind = op.get_attr("reduce_op")
    if kind not in (Average, Sum):
        raise InvalidRequestError("reducescatter has a gradient for Average and Sum only. Use allreduce.")
    factor = float(op.get_attr("prescale")) * float(op.get_attr("postscale"))
    if kind == Sum:
        factor *= len(_ranks(op))
    gathered = _gather(op, gradient)
    return gathered if factor == 1.0 else gathered * tf.cast(factor, gathered.dtype)


@_gradient_of("GroupedReducescatter")
def _grouped_reducescatter(op: Any, *gradients: Any) -> list[Any]:
    """As for each tensor by itself."""
    return [_reducescatter(op, gradient) for gradient in gradients]


# --- moving rows ---------------------------------------------------------------------------------------------------


@_gradient_of("Broadcast")
def _broadcast(op: Any, gradient: Any) -> Any:
    """Give the average of the gradients to the root, and zero to the others."""
    average = _reduce(op, gradient, Average)
    # A choice that is made when it runs: of a result that this rank is known not to use, TensorFlow would remove the
    # reduction, for which the others wait.
    is_root = tf.equal(_ops().farandole_rank(), op.get_attr("root_rank"))
    return tf.where(is_root, average, tf.zeros_like(average))


@_gradient_of("Allgather")
def _allgather(op: Any, gradient: Any, _: Any) -> Any:
    """Average the gradients, of which each rank takes the rows that it gave."""
    return _own_rows(op, gradient, op.outputs[1][0])


@_gradient_of("GroupedAllgather")
def _grouped_allgather(op: Any, *gradients: Any) -> list[Any]:
    """As for each tensor by itself."""
    counts = op.outputs[-1]
    return [_own_rows(op, gradient, counts[index]) for index, gradient in enumerate(gradients[:-1])]


def _own_rows(op: Any, gradient: Any, counts: Any) -> Any:
    position = _position(op)
    begin = tf.reduce_sum(counts[:position])
    return _reduce(op, gradient, Average)[begin : begin + counts[position]]


@_gradient_of("Alltoall")
def _alltoall(op: Any, gradient: Any, _: Any) -> list[Any]:
    """Send the rows' gradients back to where the rows came from; rows that were not sent have zero."""
    gradient = tf.convert_to_tensor(gradient)
    back, _ = _ops().farandole_alltoall(
        gradient,
        [op.outputs[1][0]],
        process_set_id=op.get_attr("process_set_id"),
        **_name("Alltoall", gradient),
    )
    rows = tf.shape(op.inputs[0])[0] - tf.shape(back)[0]
    padding = tf.zeros(tf.concat([[rows], tf.shape(op.inputs[0])[1:]], 0), back.dtype)
    return [tf.concat([back, padding], 0), *[None] * (len(op.inputs) - 1)]


# --- collectives of gradients --------------------------------------------------------------------------------------


def _ops() -> Any:
    loaded = plugin.loaded()
    assert loaded is not None, "an op of the plugin has no gradient without it"
    return loaded.ops


def _ranks(op: Any) -> list[int]:
    return basics.current().ranks_by_group()[op.get_attr("process_set_id")]


def _position(op: Any) -> int:
    return _ranks(op).index(basics.rank())


def _name(kind: str, gradient: Any) -> dict[str, str]:
    """Return the name of an op: in a graph made of the gradient's, so that ranks' calls match; else by their order."""
    if tf.executing_eagerly():
        return {}
    return {"name": f"Horovod{kind}_" + re.sub(r"[^a-zA-Z0-9_]", "_", gradient.name)}


def _reduce(op: Any, tensor: Any, kind: int, prescale: Any = "1", postscale: Any = "1") -> Any:
    tensor = tf.convert_to_tensor(tensor)
    return _ops().farandole_allreduce(
        tensor,
        reduce_op=kind,
        prescale=prescale,
        postscale=postscale,
        process_set_id=op.get_attr("process_set_id"),
        **_name("Allreduce", tensor),
    )


def _gather(op: Any, tensor: Any) -> Any:
    tensor = tf.convert_to_tensor(tensor)
    rows, _ = _ops().farandole_allgather(
        tensor, process_set_id=op.get_attr("process_set_id"), **_name("Allgather", tensor)
    )
    rows.set_shape([None, *tensor.shape[1:]])
    return rows


for _op in ("Barrier", "Join", "LocalRank", "LocalSize", "ProcessSetIncluded", "Rank", "Size"):
    tf.no_gradient(f"Farandole{_op}")

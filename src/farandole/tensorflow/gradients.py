"""The gradients of the plugin's ops, as `farandole.worker.collectives` declares them for all front ends.

TensorFlow asks for them by the names of the ops. Each is made of collectives again, so all ranks have to ask.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from farandole.errors import InvalidRequestError
from farandole.tensorflow import plugin
from farandole.worker.collectives.allreduce import ALLREDUCE
from farandole.worker.collectives.gradient_rules import CallFacts
from farandole.worker.core import basics
from farandole.worker.core.dtype import Average, Max, Min, Product, Sum

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
    if op.get_attr("reduce_op") in (Min, Max, Product):
        (result,) = _by_program(op, [gradient])
        return result
    return _reduce(op, gradient, op.get_attr("reduce_op"), op.get_attr("prescale"), op.get_attr("postscale"))


@_gradient_of("GroupedAllreduce")
def _grouped_allreduce(op: Any, *gradients: Any) -> Any:
    """As for each tensor by itself."""
    if op.get_attr("reduce_op") in (Min, Max, Product):
        return _by_program(op, gradients)
    return _reduce_all(op, gradients, op.get_attr("reduce_op"), op.get_attr("prescale"), op.get_attr("postscale"))


class _Maths:
    """In what the gradients of reductions that are not linear compute; see `Maths` in `worker.collectives`."""

    def __init__(self, op: Any) -> None:
        self._op = op

    def reduce(self, tensors: Sequence[Any], op: int) -> list[Any]:
        """Reduce tensors over the ranks of the op."""
        return _reduce_all(self._op, tensors, op)

    def equal(self, tensor: Any, other: Any) -> Any:
        """Return 1 where the two are equal and 0 elsewhere."""
        return tf.cast(tf.equal(tensor, tf.cast(other, tensor.dtype)), tensor.dtype)

    def where(self, flags: Any, then: Any, otherwise: Any) -> Any:
        """Return `then` where flags are not 0, and `otherwise` elsewhere."""
        return tf.where(tf.not_equal(flags, 0), tf.cast(then, flags.dtype), tf.cast(otherwise, flags.dtype))

    def cleared(self, tensor: Any) -> Any:
        """Return zeros that depend on the tensor."""
        return tf.where(True, tf.zeros_like(tensor), tensor)

    def product_of_rows(self, tensor: Any) -> Any:
        """Return the product over the first dimension."""
        return tf.reduce_prod(tensor, 0)

    def with_zero_rows(self, tensor: Any, before: int, after: int) -> Any:
        """Return the tensor with rows of zeros before and after it."""
        zeros = [tf.zeros(tf.concat([[count], tf.shape(tensor)[1:]], 0), tensor.dtype) for count in (before, after)]
        return tf.concat([zeros[0], tensor, zeros[1]], 0)


def _by_program(op: Any, gradients: Sequence[Any]) -> list[Any]:
    rule = ALLREDUCE.gradient
    assert rule.program is not None
    options = {"op": op.get_attr("reduce_op")}
    options |= {name: float(op.get_attr(name)) for name in ("prescale", "postscale")}
    shapes: list[Any] = [()] * len(op.inputs)  # Nothing in this program asks for them.
    facts = CallFacts(options, _ranks(op), _position(op), shapes, ())
    return list(rule.program(_Maths(op), facts, list(op.inputs), [tf.convert_to_tensor(each) for each in gradients]))


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


def _reduce_all(op: Any, tensors: Sequence[Any], kind: int, prescale: Any = "1", postscale: Any = "1") -> list[Any]:
    dense = [tf.convert_to_tensor(tensor) for tensor in tensors]
    reduced = _ops().farandole_grouped_allreduce(
        dense,
        reduce_op=kind,
        prescale=prescale,
        postscale=postscale,
        process_set_id=op.get_attr("process_set_id"),
        **_name("GroupedAllreduce", dense[0]),
    )
    return list(reduced)


def _gather(op: Any, tensor: Any) -> Any:
    tensor = tf.convert_to_tensor(tensor)
    rows, _ = _ops().farandole_allgather(
        tensor, process_set_id=op.get_attr("process_set_id"), **_name("Allgather", tensor)
    )
    rows.set_shape([None, *tensor.shape[1:]])
    return rows


for _op in ("Barrier", "Join", "LocalRank", "LocalSize", "ProcessSetIncluded", "Rank", "Size"):
    tf.no_gradient(f"Farandole{_op}")

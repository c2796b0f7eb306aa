"""The reduction of gradients in a loop of `steps`: a step counts as a whole, and survives the loss of workers.

A reducer (`worker.gradients`) gets all gradients of a call. It keeps this rank's own ones until the step counts, and
repeats the reduction in the next world if its own breaks. In a `tf.function`, TensorFlow calls this as a Python
function; the ops that use the results wait for it, so no variable is written before the step counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from farandole.errors import InvalidRequestError
from farandole.numpy.elastic.step_reduction import OnePass, Reductions
from farandole.tensorflow import ops
from farandole.worker.collectives.allreduce import ALLREDUCE
from farandole.worker.collectives.declaration import Form
from farandole.worker.core.basics import has_step_loop
from farandole.worker.core.dtype import Adasum, Average
from farandole.worker.core.group import ProcessSet, global_process_set
from farandole.worker.gradients.reduce_options import ReduceOptions


def reduce(
    tensors: Sequence[Any],
    names: Sequence[str],
    *,
    op: int,
    prescale: float = 1.0,
    postscale: float = 1.0,
    process_set: ProcessSet,
) -> list[Any]:
    """Return the reduced gradients of a step, in eager mode or in a `tf.function`.

    Args:
        tensors: all gradients that are reduced by this call, which are dense.
        names: the names by which ranks' gradients match, one for each, the same in all steps.
        op: the operation, which must not be Adasum.
        prescale: the factor before the reduction.
        postscale: the factor after the reduction.
        process_set: the ranks that take part.

    Raises:
        InvalidRequestError: op=Adasum.
        HorovodInternalError: a worker was lost, and the job is not elastic.
    """
    if op == Adasum:
        raise InvalidRequestError(
            "a loop of hvd.elastic.steps cannot reduce with Adasum, whose workers take steps of their own. Pass "
            "another op."
        )
    if not tensors:
        return []
    options = ReduceOptions(op, prescale, postscale, process_set)
    shapes = [tensor.shape for tensor in tensors]

    @tf.autograph.experimental.do_not_convert  # AutoGraph's lines would otherwise be in each traceback.
    def run(*gradients: Any) -> list[Any]:
        return _sites.reduce(names, gradients, options)

    if tf.executing_eagerly():
        return [tf.convert_to_tensor(each) for each in run(*map(np.asarray, tensors))]
    results = tf.numpy_function(run, list(tensors), [tensor.dtype for tensor in tensors], name="elastic_gradients")
    for result, shape in zip(results, shapes, strict=True):
        result.set_shape(shape)
    return results


def reduce_gradients(
    gradients: Sequence[Any],
    variables: Sequence[Any],
    *,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Return gradients reduced over all workers, for trainings without farandole's tape or optimizer.

    In a loop of `steps` this is where the step counts. It works in eager mode and in a `tf.function`.

    Args:
        gradients: the result of `tape.gradient`, of the same variables on all ranks; None is not changed, and
            `tf.IndexedSlices` become dense.
        variables: the variables of the gradients; ranks' gradients match by their order and names.
        op: Average (the default), Sum, Min, Max or Product.
        process_set: the ranks that take part.

    Raises:
        ValueError: the numbers of gradients and variables differ, or op is Adasum.
        HorovodInternalError: a worker was lost, and the job is not elastic.

    Example:
        >>> with tf.GradientTape() as tape:
        ...     loss = loss_of(y, model(x))
        >>> gradients = tape.gradient(loss, model.trainable_variables)
        >>> gradients = hvd.elastic.reduce_gradients(gradients, model.trainable_variables)
        >>> applied = optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    """
    if len(gradients) != len(variables):
        raise InvalidRequestError(f"these are {len(gradients)} gradients of {len(variables)} variables.")
    # An empty tensor stands for a missing gradient. If another rank has that gradient, the shapes differ, which is an
    # error on all ranks at once. If it were omitted, the other ranks would wait for it.
    sent = [_stand_in(variable) if each is None else each for each, variable in zip(gradients, variables, strict=True)]
    places = [index for index, each in enumerate(sent) if each is not None]
    tensors = [tf.convert_to_tensor(sent[index]) for index in places]
    names = [f"gradient.{index}.{_name_of(variables[index])}" for index in places]
    reduced = dict(zip(places, _reduce_anywhere(tensors, names, op, process_set), strict=True))
    return [None if gradient is None else reduced[index] for index, gradient in enumerate(gradients)]


def _stand_in(variable: Any) -> Any:
    dtype = tf.as_dtype(variable.dtype).base_dtype
    return tf.zeros([0], dtype) if dtype.is_floating else None


def _reduce_anywhere(tensors: list[Any], names: list[str], op: int, process_set: ProcessSet) -> list[Any]:
    if has_step_loop() or not tensors:
        return reduce(tensors, names, op=op, process_set=process_set)
    reduced: list[Any] = [None] * len(tensors)
    # A group has one element type.
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        places = [index for index, tensor in enumerate(tensors) if tensor.dtype == dtype]
        group = ops.run(
            ALLREDUCE,
            Form(grouped=True),
            [tensors[index] for index in places],
            {"op": op, "prescale": 1.0, "postscale": 1.0},
            name=f"gradients.{len(places)}.{names[places[0]]}.{names[places[-1]]}",
            process_set=process_set,
            ignore_name_scope=True,
        ).outputs
        for index, result in zip(places, group, strict=True):
            reduced[index] = result
    return reduced


def one_pass() -> OnePass:
    """Return the object that measures the reduced gradients."""
    return OnePass(_sites)


def reductions() -> int:
    """Return the number of reductions that have been made in this process."""
    return _sites.count


# A graph of TensorFlow holds only a number of the function that it calls, and may live as long as the program. So what
# the function uses must live as long.
_sites = Reductions()


def _name_of(variable: Any) -> str:
    # A Keras variable's path has the names of its layers.
    return re.sub(r"[^A-Za-z0-9_./-]", "_", str(getattr(variable, "path", None) or variable.name))

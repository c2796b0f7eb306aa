"""The ops without the plugin library: Python functions that TensorFlow calls, over the collectives of NumPy arrays.

They are slower than the plugin's, because each op blocks one of TensorFlow's threads until it is done, and all of them
need Python's lock. TensorFlow runs Python functions of one `tf.function` in their order, which is the same on all
ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from farandole.base.request_kind import Rows
from farandole.numpy.arrays import Arrays
from farandole.tensorflow.ops.gradients import Differentiable, Members, input_options
from farandole.worker.collectives.barrier import barrier as barrier_of_ranks
from farandole.worker.collectives.barrier import join as join_ranks
from farandole.worker.collectives.declaration import Collective, Form, Options
from farandole.worker.collectives.differentiation import Outcome
from farandole.worker.collectives.forms import Forms
from farandole.worker.core import basics
from farandole.worker.core.group import ProcessSet


class _ArraysOfTensors(Arrays):
    """The front end for arrays of TensorFlow's tensors: its calls have the same names as the plugin's."""

    scope = "tensorflow."


_forms = Forms(_ArraysOfTensors())

# --- collectives -------------------------------------------------------------------------------------------------


def run(
    collective: Collective,
    form: Form,
    tensors: Sequence[Any],
    options: Options,
    *,
    name: str | None,
    process_set: ProcessSet,
    ignore_name_scope: bool = False,
) -> Outcome:
    """Return the result of a collective; gradients flow through it."""
    key = _key(name, ignore_name_scope)
    further = input_options(options)
    members = Members(lambda: _number(process_set.size), lambda: _number(process_set.rank), rank)
    count, receives = len(tensors), collective.receives_rows

    @tf.custom_gradient
    def differentiable(*inputs: Any) -> tuple[list[Any], Callable[..., list[Any]]]:
        own = list(inputs[:count])
        results = _call(of_arrays, inputs, dtypes, key)
        outputs = [_shaped(each, _shape(collective, tensor)) for each, tensor in zip(results, own, strict=False)]
        counts = [_shaped(each, [None]) for each in results[count:]]

        def gradient(*gradients: Any) -> list[Any]:
            call = Differentiable(collective, options, members, own, counts, again)
            return [*call.gradients(gradients[:count]), *[None] * len(further)]

        return [*outputs, *counts], gradient

    def of_arrays(*arrays: Any) -> list[Any]:
        given = {**options, **dict(zip(further, arrays[count:], strict=True))}
        own = [_forms.front.accept(array, False) for array in arrays[:count]]
        outcome = _forms.outcome(collective, form, own, key, process_set, given)
        return [*outcome.outputs, *(np.asarray(each, counts_dtype.as_numpy_dtype) for each in outcome.received)]

    def again(
        collective: Collective, form: Form, tensors: Sequence[Any], options: Options, name: str | None
    ) -> Outcome:
        return run(collective, form, tensors, options, name=name, process_set=process_set)

    # As the plugin counts rows.
    counts_dtype = tf.int32 if "splits" in options else tf.int64
    dtypes = [*(tensor.dtype for tensor in tensors), *[counts_dtype] * (count * receives)]
    results = differentiable(*tensors, *further.values())
    return Outcome(results[:count], results[count:])


# --- without tensors ---------------------------------------------------------------------------------------------


def join() -> Any:
    """Wait until all ranks have no more data; return the last of them (int32)."""
    return _number(join_ranks)


def barrier(process_set: ProcessSet) -> Any:
    """Wait until all ranks of the process set have called this."""

    def run() -> int:
        barrier_of_ranks(process_set)
        return 0

    return _number(run)


def size(process_set_id: int = 0) -> Any:
    """Return the number of ranks in a process set at the time when the op runs (int32)."""
    return _number(lambda: len(basics.identity().groups[process_set_id]))


def rank() -> Any:
    """Return the rank at the time when the op runs (int32)."""
    return _number(basics.rank)


def local_size() -> Any:
    """Return the number of workers on this host at the time when the op runs (int32)."""
    return _number(basics.local_size)


def local_rank() -> Any:
    """Return the rank on this host at the time when the op runs (int32)."""
    return _number(basics.local_rank)


def process_set_included(process_set_id: int = 0) -> Any:
    """Return 1 if this rank is in a process set when the op runs, else 0 (int32)."""
    return _number(lambda: int(basics.rank() in basics.identity().groups[process_set_id]))


# --- calling Python ----------------------------------------------------------------------------------------------


def _call(run: Callable[..., list[Any]], inputs: Sequence[Any], dtypes: list[Any], name: str | None) -> list[Any]:
    """Call a function of arrays: now or, in a graph, when it runs."""
    if tf.executing_eagerly():
        return [tf.convert_to_tensor(result) for result in run(*(tensor.numpy() for tensor in inputs))]
    results: list[Any] = tf.numpy_function(run, list(inputs), dtypes, name=_op_name(name))
    return results


def _number(read: Callable[[], int | None]) -> Any:
    (number,) = _call(lambda: [np.asarray(read(), np.int32)], [], [tf.int32], None)
    return _shaped(number, [])


def _key(name: str | None, ignore_name_scope: bool) -> str | None:
    """Return the name by which ranks' calls match: in a graph, with its scope, so that it is unique to the call."""
    if name is None or tf.executing_eagerly():
        return name
    if ignore_name_scope:
        return name
    scope = tf.compat.v1.get_default_graph().get_name_scope()
    return f"{scope}/{name}" if scope else name


def _op_name(name: str | None) -> str | None:
    return None if name is None else name.rpartition("/")[2]


def _shape(collective: Collective, tensor: Any) -> Any:
    if collective.rows is Rows.SAME:
        return tensor.shape
    return [None, *tensor.shape[1:]] if tensor.shape.rank else None


def _shaped(result: Any, shape: Any) -> Any:
    """Set the static shape of the result of a Python function."""
    if not tf.executing_eagerly():
        result.set_shape(tf.TensorShape(shape))
    return result

"""The reduction of gradients in a loop of `steps`: a step counts as a whole, and survives the loss of workers.

In a compiled function, XLA makes a callback for it and waits; operations on the results also wait, so that no parameter
is computed from a step that does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from farandole.errors import FarandoleError, InvalidRequestError
from farandole.jax.functions import grouped_allreduce
from farandole.jax.trees import Tree
from farandole.numpy.elastic.step_reduction import OnePass, Reductions
from farandole.worker.core.basics import has_step_loop
from farandole.worker.core.dtype import Adasum, Average
from farandole.worker.core.group import ProcessSet, global_process_set
from farandole.worker.gradients.reduce_options import ReduceOptions

_reductions = Reductions()
# XLA hands on an error of a function that it calls as text only.
_last_failure: list[FarandoleError] = []


def one_pass() -> OnePass:
    """Return the object that measures the reduced gradients."""
    return OnePass(_reductions)


def count() -> int:
    """Return the number of reductions that have been made in this process."""
    return _reductions.count


def failure_in(error: BaseException) -> FarandoleError | None:
    """Return the error of a reduction in a compiled function, if it is the cause of JAX's error."""
    failure = _last_failure[-1] if _last_failure else None
    return failure if failure is not None and str(failure) in str(error) else None


def reduce_gradients(gradients: Tree, *, op: int = Average, process_set: ProcessSet = global_process_set) -> Tree:
    """Return gradients reduced over all workers, in the same structure.

    In a loop of `steps` this is where the step counts; `distributed` and `distributed_grad` call it themselves. Outside
    of such a loop, it is `grouped_allreduce`. It works eagerly and in a compiled function.

    Args:
        gradients: arrays in any structure, the same on all ranks and in all steps.
        op: Average (the default), Sum, Min, Max or Product.
        process_set: the ranks that take part.

    Raises:
        ValueError: op is Adasum, in a loop.
        HorovodInternalError: a worker was lost, and the job is not elastic.

    Example:
        >>> gradients = hvd.elastic.reduce_gradients(jax.grad(loss)(params, batch))
    """
    if not has_step_loop():
        return grouped_allreduce(gradients, op=op, process_set=process_set)
    if op == Adasum:
        raise InvalidRequestError(
            "a loop of hvd.elastic.steps cannot reduce with Adasum, whose workers take steps of their own. Pass "
            "another op."
        )
    paths, structure = jax.tree_util.tree_flatten_with_path(gradients)
    if not paths:
        return gradients
    names = [f"gradient.{index}{jax.tree_util.keystr(path)}" for index, (path, _) in enumerate(paths)]
    leaves = [leaf for _, leaf in paths]
    reduced = _reduce(names, leaves, ReduceOptions(op, 1.0, 1.0, process_set))
    result: Tree = jax.tree_util.tree_unflatten(structure, reduced)
    return result


def _reduce(names: Sequence[str], leaves: Sequence[Any], options: ReduceOptions) -> Sequence[Any]:
    def run(*arrays: Any) -> list[Any]:
        try:
            return _reductions.reduce(names, [np.asarray(array) for array in arrays], options)
        except FarandoleError as error:
            _last_failure[:] = [error]
            raise

    if not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        return [jax.numpy.asarray(result) for result in run(*leaves)]
    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
    results: Sequence[Any] = io_callback(run, shapes, *leaves, ordered=True)
    return results

"""The comparison of the ranks' weights while Keras trains a model, by `farandole.worker.gradients.parameter_check`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from farandole.keras import left_out
from farandole.numpy.variables import digest
from farandole.worker.core.basics import session_if_any
from farandole.worker.gradients.parameter_check import ParameterCheck
from farandole.worker.gradients.wrapper_gradients import GradientReduction

_ADVICE = (
    "hvd.callbacks.BroadcastGlobalVariablesCallback(0) to the callbacks of fit(), or call "
    "hvd.broadcast_variables(model.weights, root_rank=0),"
)

# They end with their optimizers.
_checks: WeakKeyDictionary[GradientReduction, ParameterCheck] = WeakKeyDictionary()


def compare_weights(model: Any, arguments: Sequence[Any], backend: str) -> None:
    """Compare the ranks' trainable weights before a step of a model, if this is due, and report the outcome to the
    user.

    Nothing is compared before the first step, because scripts may broadcast after it, once it has created all
    variables.

    Args:
        model: a model whose optimizer may be distributed; local variables are omitted.
        arguments: the arguments of the model's train function.
        backend: the name of the backend that trains the model.
    """
    reduction: GradientReduction | None = getattr(model.optimizer, "_farandole", None)
    if reduction is None or session_if_any() is None or left_out.is_on() or reduction.options.is_local():
        return
    if reduction not in _checks:
        _checks[reduction] = ParameterCheck(reduction.next_name(), reduction.options.process_set, _ADVICE)
        return
    _checks[reduction].step(lambda: digest(_shared_weights(model, arguments, reduction, backend)))


def _shared_weights(model: Any, arguments: Sequence[Any], reduction: GradientReduction, backend: str) -> list[Any]:
    variables = model.trainable_variables
    # On JAX, the step is given the values, and the variables have none meanwhile.
    values = arguments[0][0] if backend == "jax" else [variable.numpy() for variable in variables]
    return [value for variable, value in zip(variables, values, strict=True) if not reduction.is_local(variable)]

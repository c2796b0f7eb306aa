"""The comparison of the ranks' variables in loops with a tape, by `farandole.worker.gradients.parameter_check`."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from farandole.numpy.variables import digest
from farandole.worker.core.basics import current, session_if_any
from farandole.worker.gradients.parameter_check import ParameterCheck
from farandole.worker.gradients.wrapper_gradients import GradientReduction

_ADVICE = "hvd.broadcast_variables(model.variables, root_rank=0)"

# By the first of the compared variables, with which it ends: a loop makes a tape for each step. A variable has no hash.
_checks: dict[int, ParameterCheck] = {}
# The number of checks of each name so far, the same on all ranks, as their loops are.
_made: Counter[str] = Counter()


def compare_variables(reduction: GradientReduction, sources: Sequence[Any], name: str) -> list[Any]:
    """Compare the ranks' variables in a step of a loop, if this is due, and report the outcome to the user.

    Nothing is compared before the first step, because scripts may broadcast after it, once it has created all
    variables.

    Args:
        reduction: the reduction of the variables' gradients; local variables are omitted.
        sources: the variables; tensors among them are omitted.
        name: the name of the function or class that reduces.

    Returns:
        In a graph, the op that compares, which must run before ops that change the variables; nothing in eager mode,
        and in graphs of `tf.compat.v1`, where nothing is compared.
    """
    if reduction.options.is_local() or not _is_on() or not tf.compat.v1.executing_eagerly_outside_functions():
        return []
    own = [getattr(source, "value", source) if not isinstance(source, tf.Variable) else source for source in sources]
    shared = [
        variable
        for source, variable in zip(sources, own, strict=True)
        if isinstance(variable, tf.Variable) and not reduction.is_local(source)
    ]
    if not shared:
        return []

    @tf.autograph.experimental.do_not_convert
    def step() -> None:
        _step(shared, reduction, name)

    if not tf.executing_eagerly():
        return [tf.py_function(step, [], [], name="compare_variables")]
    step()
    return []


def _is_on() -> bool:
    session = current()
    return session.settings.check_parameters > 0 and session.notices is None


def _step(variables: Sequence[Any], reduction: GradientReduction, name: str) -> None:
    # A step after the shutdown fails by its collectives, whose error names them.
    if session_if_any() is None:
        return
    key = id(variables[0])
    if key in _checks:
        _checks[key].step(lambda: digest(variable.numpy() for variable in variables))
        return
    _made[name] += 1
    _checks[key] = ParameterCheck(f"{name}.{_made[name]}", reduction.options.process_set, _ADVICE)
    weakref.finalize(variables[0], _checks.pop, key, None)

"""The comparison of the ranks' parameters by optax optimizers, with `farandole.worker.gradients.parameter_check`.

A compiled step calls no Python code, and reading its parameters would cost time in each step. So an optimizer keeps
weak references to the arrays that were passed to its `init`, and compares them when its `update` is called, or traced,
for the first time. By then, a script has synchronized them if it ever does.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import jax
import numpy as np

from farandole.jax.carriers import is_key
from farandole.numpy.variables import digest
from farandole.worker.core.basics import session_if_any
from farandole.worker.core.group import ProcessSet
from farandole.worker.gradients.parameter_check import ParameterCheck

_ADVICE = "params = hvd.broadcast_parameters(params)"

# The same on all ranks, as their optimizers are.
_numbers = itertools.count(1)


class OptimizerCheck:
    """The check of one optax optimizer."""

    def __init__(self, process_set: ProcessSet) -> None:
        """Prepare the check of an optimizer that reduces over `process_set`."""
        self._check = ParameterCheck(f"optax.{next(_numbers)}", process_set, _ADVICE, steps_are_traced=True)
        self._initial: list[weakref.ref[Any]] = []
        self._broadcasts = 0

    def remember(self, params: Any) -> None:
        """Keep references to the parameters that were passed to `init`; traced ones have no values, and are not
        compared.
        """
        arrays = _arrays(params)
        self._initial = [weakref.ref(array) for array in arrays] if arrays else []
        self._broadcasts = _broadcasts()

    def step(self, params: Any) -> None:
        """Compare the parameters if this is due in this call of `update`, which may be traced.

        Args:
            params: the argument of `update`, which may be None.
        """
        if session_if_any() is None:
            return

        def values() -> int | None:
            arrays = _arrays(params) or self._living()
            return None if arrays is None else digest(map(_value, arrays))

        self._check.step(values)

    def _living(self) -> list[Any] | None:
        """Return the arrays that were passed to `init`, if they still seem to be the trained ones."""
        arrays = [reference() for reference in self._initial]
        is_gone = any(array is None or (isinstance(array, jax.Array) and array.is_deleted()) for array in arrays)
        # A broadcast after `init` may have been that of the parameters, whose first values may be kept all the same.
        return None if not arrays or is_gone or _broadcasts() != self._broadcasts else arrays


def _arrays(params: Any) -> list[Any] | None:
    """Return the arrays in a structure whose values this process has, or None if it does not have them all."""
    arrays = [leaf for leaf in jax.tree.leaves(params) if isinstance(leaf, (jax.Array, np.ndarray))]
    if any(isinstance(each, jax.core.Tracer) for each in arrays):
        return None
    is_here = all(each.is_fully_addressable for each in arrays if isinstance(each, jax.Array))
    return arrays if arrays and is_here else None


def _value(array: Any) -> Any:
    return jax.random.key_data(array) if isinstance(array, jax.Array) and is_key(array) else array


def _broadcasts() -> int:
    """Return the number of broadcasts that this process has made in its world."""
    session = session_if_any()
    return 0 if session is None else int(session.engine.stats()["operations"]["broadcast"]["requests"])

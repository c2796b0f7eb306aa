"""Checkpoints of elastic training with TensorFlow: models, optimizers and variables, as arrays by position."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import numpy as np

from farandole.errors import InvalidRequestError
from farandole.numpy.elastic.array_checkpoint import VALUES, ArrayCheckpoint
from farandole.worker.elastic.variables import variables_of


class Checkpoint(ArrayCheckpoint):
    """A directory of checkpoints, which a training writes to and resumes from.

    It saves, by name, objects with variables (models and optimizers of Keras, modules, variables and lists of them),
    objects with `state_dict` and `load_state_dict`, arrays, numbers, text and bytes. Each rank writes its share of the
    arrays to safetensors files. Variables are identified by their position in `variables`.

    Example:
        >>> checkpoint = Checkpoint("checkpoints", every_steps=100)
        >>> state = {"model": model, "optimizer": optimizer, "epoch": 3}
        >>> first = checkpoint.load(state) or 0
        >>> for step in range(first + 1, 201):
        ...     if checkpoint.due(step):
        ...         begun = checkpoint.save(state, step, rank=hvd.rank(), size=hvd.size())
        >>> checkpoint.wait()
        True
    """

    def _state_of(self, value: Any) -> Any:
        if isinstance(value, (*VALUES, np.ndarray)):
            return value
        variables = variables_of(value)
        if variables is not None:
            return [_array(variable) for variable in variables]
        if hasattr(value, "state_dict"):
            return value.state_dict()
        raise InvalidRequestError(
            f"an object of type {type(value).__name__} cannot be saved: pass a model, an optimizer, variables, or an "
            "object with state_dict and load_state_dict."
        )

    def _fits(self, target: Any, value: Any) -> bool:
        if isinstance(target, np.ndarray):
            return isinstance(value, np.ndarray) and _described([target]) == _described([value])
        if isinstance(target, VALUES):
            return True
        variables = variables_of(target)
        if variables is None:
            return hasattr(target, "load_state_dict")
        return isinstance(value, list) and _described(map(_array, variables)) == _described(value)

    def _shape_of(self, target: Any) -> str:
        if isinstance(target, np.ndarray):
            return f"the array {_described([target])[0]}"
        variables = variables_of(target)
        if variables is None:
            return f"a {type(target).__name__} without load_state_dict"
        names = (getattr(variable, "path", None) or variable.name for variable in variables)
        described = _described(map(_array, variables))
        return f"the variables {', '.join(f'{name} {what}' for name, what in zip(names, described, strict=True))}"

    def _put(self, into: MutableMapping[str, Any], name: str, target: Any, value: Any) -> None:
        if isinstance(target, (*VALUES, np.ndarray)):
            into[name] = value
            return
        variables = variables_of(target)
        if variables is None:
            target.load_state_dict(value)
            return
        for variable, array in zip(variables, value, strict=True):
            variable.assign(array)


def _array(variable: Any) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = np.asarray(variable.numpy())
    if array.dtype.kind in "OUS":
        raise InvalidRequestError(f"the variable {variable.name} holds text, which a checkpoint cannot: omit it.")
    return array


def _described(arrays: Any) -> list[str]:
    return [f"{array.dtype.name}{list(array.shape)}" for array in arrays]

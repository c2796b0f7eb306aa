"""The variables of a model that must be the same on all workers."""

from __future__ import annotations

from typing import Any

from farandole.numpy.variables import broadcast_variables
from farandole.worker.elastic.variables import variables_of

__all__ = ["broadcast_global_variables", "broadcast_variables", "model_variables"]


def broadcast_global_variables(root_rank: int) -> None:
    """Raise an error that says what to do instead: Keras has no global variables.

    Raises:
        RuntimeError: always.
    """
    raise RuntimeError(
        "hvd.broadcast_global_variables() does not support eager execution, in which there are no global variables. "
        f"Pass hvd.callbacks.BroadcastGlobalVariablesCallback({root_rank}) to fit(), or call "
        f"hvd.broadcast_variables(model.weights, {root_rank})."
    )


def model_variables(model: Any) -> list[Any]:
    """Return the variables that must be the same on all workers: weights, and the state of the optimizer.

    The state of layers' random generators is omitted: each worker drops out different units.
    """
    return [*model.weights, *(variables_of(getattr(model, "optimizer", None)) or ())]

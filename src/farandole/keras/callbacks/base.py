"""The base class of all callbacks, for the Keras that the program uses: Keras 3, or tf_keras."""

from __future__ import annotations

from typing import Any

from farandole.keras.keras_in_use import KERAS
from farandole.worker.elastic.variables import build_optimizer


class Callback(KERAS.callbacks.Callback):
    """A callback that models of Keras 3 and of tf_keras accept."""

    # The attributes that tf_keras reads of its own callbacks.
    _chief_worker_only = None
    _supports_tf_logs = False

    def _implements_train_batch_hooks(self) -> bool:
        return True

    def _implements_test_batch_hooks(self) -> bool:
        return True

    def _implements_predict_batch_hooks(self) -> bool:
        return False


def build(model: Any) -> bool:
    """Make the optimizer of a model create its variables, if the model has its own; return whether both have them."""
    optimizer = getattr(model, "optimizer", None)
    if not model.built or optimizer is None:
        return False
    build_optimizer(optimizer, list(model.trainable_variables))
    # The older optimizers of tf_keras have no `built`: they make their variables in the first step.
    return bool(getattr(optimizer, "built", False))

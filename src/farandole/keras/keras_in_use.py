"""The Keras that the program uses: Keras 3, or tf_keras."""

from __future__ import annotations

import importlib
import os
from typing import Any

import keras


def _keras() -> Any:
    """Return Keras 3, or tf_keras if TensorFlow is configured to use it as `tf.keras`."""
    if os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true"):
        return importlib.import_module("tf_keras")
    return keras


KERAS: Any = _keras()

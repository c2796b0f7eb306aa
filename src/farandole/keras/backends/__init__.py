"""What differs between the backends of Keras: one module for each, loaded when Keras uses it.

Each has `reduce` (gradients), `allreduce`, `allgather`, `broadcast`, `reducescatter` (what users call), `translate`
(its errors), `compression` (its compressions) and `check_scope`.
"""

from __future__ import annotations

import importlib
from types import ModuleType

import keras

from farandole.errors import InvalidRequestError

_MODULES = {"tensorflow": "on_tensorflow", "torch": "on_torch", "jax": "on_jax"}


def name() -> str:
    """Return the name of the backend that Keras uses."""
    return str(keras.config.backend() if hasattr(keras, "config") else "tensorflow")


def chosen() -> ModuleType:
    """Return the module for the backend that Keras uses.

    Raises:
        ValueError: there is none for it.
    """
    if name() not in _MODULES:
        raise InvalidRequestError(
            f"farandole.keras works with the Keras backends {', '.join(_MODULES)}, and Keras uses {name()}. Set "
            "KERAS_BACKEND to one of these before Keras is imported."
        )
    return importlib.import_module(f"farandole.keras.backends.{_MODULES[name()]}")

"""The code that depends on Keras' backend: one module for each, loaded when Keras uses it, with its `BACKEND`."""

from __future__ import annotations

import importlib

import keras

from farandole.errors import InvalidRequestError
from farandole.keras.backends.backend import KerasBackend

_MODULES = {"tensorflow": "on_tensorflow", "torch": "on_torch", "jax": "on_jax"}


def name() -> str:
    """Return the name of the backend that Keras uses."""
    return str(keras.config.backend())


def chosen(backend: str | None = None) -> KerasBackend:
    """Return the code that depends on Keras' backend.

    Args:
        backend: the name of the backend; None: the one that Keras uses.

    Raises:
        ValueError: farandole does not support this backend.
    """
    backend = backend or name()
    if backend not in _MODULES:
        raise InvalidRequestError(
            f"farandole.keras works with the Keras backends {', '.join(_MODULES)}, and Keras uses {backend}. Set "
            "KERAS_BACKEND to one of these before Keras is imported."
        )
    module = importlib.import_module(f"farandole.keras.backends.{_MODULES[backend]}")
    found: KerasBackend = module.BACKEND
    return found

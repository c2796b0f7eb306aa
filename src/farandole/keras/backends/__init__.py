"""What differs between the backends of Keras: one module for each, loaded when Keras uses it.

Each has `reduce`, `dense` and `as_it_is` for optimizers; `allreduce`, `allgather`, `broadcast` and `reducescatter`,
which users call; `translate` for its errors; its `compression`; and `check_scope`.
"""

from __future__ import annotations

import importlib
from types import ModuleType

import keras

from farandole.errors import InvalidRequestError

_MODULES = {"tensorflow": "on_tensorflow", "torch": "on_torch", "jax": "on_jax"}


def name() -> str:
    """Return the name of the backend that Keras uses."""
    return str(keras.config.backend())


def chosen(backend: str | None = None) -> ModuleType:
    """Return the module for a backend.

    Args:
        backend: None: the one that Keras uses.

    Raises:
        ValueError: there is none for it.
    """
    backend = backend or name()
    if backend not in _MODULES:
        raise InvalidRequestError(
            f"farandole.keras works with the Keras backends {', '.join(_MODULES)}, and Keras uses {backend}. Set "
            "KERAS_BACKEND to one of these before Keras is imported."
        )
    return importlib.import_module(f"farandole.keras.backends.{_MODULES[backend]}")

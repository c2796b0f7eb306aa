"""Keras with JAX: collectives that are part of the step that JAX compiles."""

from __future__ import annotations

from typing import Any

import jax

import farandole.jax as hvd
from farandole.errors import FarandoleError
from farandole.keras.backends.backend import KerasBackend


class _OnJax(KerasBackend):
    def tensor(self, value: Any) -> Any:
        """Return an array of the type that JAX uses for the value: like Keras, it converts 64 bits to 32 without a
        warning.
        """
        return jax.numpy.asarray(value)

    def translate(self, error: BaseException) -> FarandoleError | None:
        return hvd.translate(error)

    def stand_in(self, variable: Any) -> Any:
        return jax.numpy.zeros(0, variable.dtype)


BACKEND = _OnJax(hvd)

"""Keras with PyTorch."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import keras
import torch

import farandole.torch as hvd
from farandole.keras.backends.backend import KerasBackend


class _OnTorch(KerasBackend):
    def tensor(self, value: Any) -> torch.Tensor:
        return torch.as_tensor(value.value if isinstance(value, keras.Variable) else value)

    def no_gradients(self) -> AbstractContextManager[None]:
        return torch.no_grad()

    def dense(self, gradient: Any) -> Any:
        return gradient.to_dense() if gradient.is_sparse else gradient

    def stand_in(self, variable: Any) -> Any:
        return torch.zeros(0, dtype=variable.value.dtype)


BACKEND = _OnTorch(hvd)

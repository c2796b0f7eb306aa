"""Checkpoints whose tensors are NumPy arrays, for frameworks whose arrays can be converted to these."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from farandole.numpy.elastic.array_files import open_format
from farandole.worker.elastic.checkpoint.checkpoint_base import CheckpointBase
from farandole.worker.elastic.checkpoint.tensor_files import TensorFiles, Tensors

VALUES = (bool, int, float, str, bytes, type(None))
"""Types whose values are written without conversion."""


class ArrayCheckpoint(CheckpointBase):
    """The part of a checkpoint that all frameworks with arrays share."""

    @staticmethod
    def _open_format(name: str) -> TensorFiles:
        return open_format(name)

    def _identify(self, value: Any) -> Hashable | None:
        if not isinstance(value, np.ndarray):
            return None
        if value.size == 0:
            return id(value)
        return value.ctypes.data, value.dtype, value.shape, value.strides

    def _describe(self, tensor: Any) -> tuple[str, tuple[int, ...], int]:
        return tensor.dtype.name, tensor.shape, tensor.nbytes

    def _copied(self, sources: Tensors, before: Tensors) -> tuple[dict[str, Any], Callable[[], None]]:
        copies: dict[str, Any] = {}
        for name, source in sources.items():
            last = before.get(name)
            fits = last is not None and last.shape == source.shape and last.dtype == source.dtype
            copy: Any = last if fits else np.empty(source.shape, source.dtype)
            np.copyto(copy, source)
            copies[name] = copy
        return copies, lambda: None

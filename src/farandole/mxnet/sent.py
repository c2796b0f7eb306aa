"""An MXNet array in the form that the engine gets."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import mxnet as mx
import numpy as np


@dataclass(frozen=True)
class Sent:
    """An array, and its role in a call."""

    array: mx.nd.NDArray
    priority: int = 0
    """The priority. Of the calls that are ready, MXNet's engine starts those with the highest priority first."""
    in_place: bool = False
    """Whether the result overwrites it."""
    memory: int = 0
    """The address of an array to which no other code has a reference yet; 0 for others, whose address is known when the
    call begins."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's shape."""
        shape: tuple[int, ...] = self.array.shape
        return shape

    @property
    def dtype(self) -> Any:
        """The array's element type."""
        return self.array.dtype

    @property
    def nbytes(self) -> int:
        """The number of bytes of its elements."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

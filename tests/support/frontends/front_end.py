"""What a front end is to the tests: numpy in, numpy out."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

# Element types by name, and the numpy type in which their values are compared. numpy has no bfloat16 of its own.
DTYPES = {
    "uint8": np.uint8,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "float16": np.float16,
    "bfloat16": np.float32,
    "float32": np.float32,
    "float64": np.float64,
    "bool": np.bool_,
}


class FrontEnd(ABC):
    """What a front end is to the tests.

    Attributes:
        name: of it, a word.
        module: in `farandole`.
        runtime: what its workers have imported, a row of `nurseries.RUNTIMES`.
        has: what tests may need of it beyond collectives on the CPU; see the marker `needs`.
        dtypes: element types, by name.
        compressions: names of those in `Compression` that are casts.
    """

    name: str
    module: str
    runtime: str
    has: ClassVar[frozenset[str]]
    dtypes: tuple[str, ...] = tuple(DTYPES)
    compressions: tuple[str, ...] = ("none", "fp16", "bf16")

    @property
    def hvd(self) -> ModuleType:
        """The module under test."""
        return importlib.import_module(f"farandole.{self.module}")

    @abstractmethod
    def tensor(self, values: Any, dtype: str = "float32") -> Any:
        """Return a tensor of these values."""

    @abstractmethod
    def array(self, tensor: Any) -> np.ndarray:
        """Return a tensor's values, as an array of their own."""

    @abstractmethod
    def dtype(self, tensor: Any) -> str:
        """Return the name of a tensor's element type."""

    @abstractmethod
    def unsendable(self) -> list[tuple[Any, str]]:
        """Return tensors that no collective takes, and words of the error."""

    @abstractmethod
    def unwritable(self) -> list[tuple[Any, str]]:
        """Return tensors that no collective in place takes, and words of the error."""

    def copy(self, tensor: Any) -> Any:
        """Return a tensor of the same values."""
        return self.tensor(self.array(tensor), self.dtype(tensor))

    def number(self, tensor: Any) -> float:
        """Return the one value of a tensor."""
        return float(self.array(tensor).item())

    def gradient(self, function: Any, values: Any) -> np.ndarray:
        """Return the gradient of `function(tensor)`, which gives a scalar, at `values`."""
        raise NotImplementedError

"""The front ends as the conformance suite sees them: numpy in, numpy out. One class each."""

from __future__ import annotations

import importlib
import importlib.util
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
        name: of it, and of its module in `farandole`.
        has: what tests may need of it beyond collectives on the CPU; see the marker `needs`.
        dtypes: element types, by name.
        compressions: names of those in `Compression` that are casts.
    """

    name: str
    has: ClassVar[frozenset[str]]
    dtypes: tuple[str, ...] = tuple(DTYPES)
    compressions: tuple[str, ...] = ("none", "fp16", "bf16")

    @property
    def hvd(self) -> ModuleType:
        """The module under test."""
        return importlib.import_module(f"farandole.{self.name}")

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


class Torch(FrontEnd):
    """farandole.torch."""

    name = "torch"
    has = frozenset({"gradients", "torch", "int32 splits"})

    def tensor(self, values: Any, dtype: str = "float32") -> Any:
        import torch

        array = np.asarray(values).astype(DTYPES[dtype], order="C")
        return torch.from_numpy(array).to(getattr(torch, dtype))

    def array(self, tensor: Any) -> np.ndarray:
        import torch

        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).detach().numpy().copy()

    def dtype(self, tensor: Any) -> str:
        return str(tensor.dtype).removeprefix("torch.")

    def unsendable(self) -> list[tuple[Any, str]]:
        import torch

        return [
            (torch.ones(3, 4).t(), "Tensor is required to be contiguous."),
            (torch.ones(2, dtype=torch.complex64), "Tensor type torch.ComplexFloatTensor is not supported"),
            (torch.ones(2, 2).to_sparse(), "not supported"),
        ]

    def unwritable(self) -> list[tuple[Any, str]]:
        import torch

        return [(torch.ones(3, 4)[:, :2], "Tensor is required to be contiguous.")]

    def gradient(self, function: Any, values: Any) -> np.ndarray:
        import torch

        tensor = torch.tensor(np.asarray(values), requires_grad=True)
        function(tensor).backward()
        return self.array(tensor.grad)


class Numpy(FrontEnd):
    """farandole.numpy."""

    name = "numpy"
    has = frozenset({"numpy"})

    def __init__(self) -> None:
        if importlib.util.find_spec("ml_dtypes") is None:
            self.dtypes = tuple(dtype for dtype in DTYPES if dtype != "bfloat16")
            self.compressions = ("none", "fp16")

    def tensor(self, values: Any, dtype: str = "float32") -> Any:
        array = np.asarray(values).astype(DTYPES[dtype], order="C")
        if dtype != "bfloat16":
            return array
        import ml_dtypes

        return array.astype(ml_dtypes.bfloat16)

    def array(self, tensor: Any) -> np.ndarray:
        assert type(tensor) is np.ndarray
        return tensor.astype(np.float32) if tensor.dtype.name == "bfloat16" else tensor.copy()

    def dtype(self, tensor: Any) -> str:
        return tensor.dtype.name

    def unsendable(self) -> list[tuple[Any, str]]:
        structured = np.zeros(2, [("count", np.int32), ("mean", np.float32)])
        return [
            (np.array([None]), "Tensor type numpy.ndarray of object is not supported. Use broadcast_object"),
            (np.ones(2, np.complex64), "is not supported. Pass the real and the imaginary part"),
            (structured, "is not supported. Pass each field"),
            (np.array(["text"]), "is not supported"),
            (np.ones(2, np.uint32), "is not supported"),
            (np.ma.masked_equal([1, 2], 2), "masked"),
        ]

    def unwritable(self) -> list[tuple[Any, str]]:
        return [
            (np.broadcast_to(np.float32(1), 3), "read-only"),
            ([1.0, 2.0], "writes over a numpy.ndarray, but got list"),
            (np.float64(1), "writes over a numpy.ndarray"),
        ]


# What a test leaves in a worker for its next function there.
KEPT: list[Any] = []

FRONT_ENDS = {front.name: front for front in (Torch(), Numpy())}

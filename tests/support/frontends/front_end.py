"""The interface of a front end for tests: NumPy arrays in, NumPy arrays out."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

# Element types by name, and the numpy type in which their values are compared. NumPy has no bfloat16.
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


# What all front ends have but those that are for a framework's values only; words of the marker `needs`.
COMMON = frozenset(
    {
        "alltoall",
        "grouped",
        "join",
        "process sets",
        "ragged",
        "ragged gradients",
        "rounded once",
        "scaled reducescatter",
    }
)

# Of two hosts, between which MPI carries the data: one worker on each, and two.
WORLDS_OF_MPI = ((2, "mpi"), (4, "mpi"))

# What `at_once` begins: a collective by name, a tensor (of a grouped one, a list of them), named arguments.
Call = tuple[str, Any, dict[str, Any]]


class FrontEnd(ABC):
    """The interface of a front end for tests.

    Attributes:
        name: the front end's name, one word.
        module: the name of its module in `farandole`.
        runtime: the modules that its workers have imported: a row of `nurseries.RUNTIMES`.
        worlds: sizes and transports with which it is tested.
        has: its features beyond plain collectives of values on the CPU; see the marker `needs`.
        dtypes: element types, by name.
        compressions: the names of casts in `Compression`.
        has_other_worlds: whether it also runs the tests that create separate worlds.
        is_thorough: whether each option is tested with each type; if not, another front end with the same
            implementation is.
    """

    name: str
    module: str
    runtime: str
    worlds: tuple[tuple[int, str], ...] = ((1, "shm"), (2, "tcp"), (3, "shm"))
    has: ClassVar[frozenset[str]]
    dtypes: tuple[str, ...] = tuple(DTYPES)
    compressions: tuple[str, ...] = ("none", "fp16", "bf16")
    is_thorough = True
    has_other_worlds = True

    def prepare(self) -> None:  # noqa: B027 most front ends have nothing to do
        """Prepare a worker before its first collective."""

    @property
    def hvd(self) -> ModuleType:
        """The module under test."""
        return importlib.import_module(f"farandole.{self.module}")

    @abstractmethod
    def tensor(self, values: Any, dtype: str = "float32") -> Any:
        """Return a tensor of these values."""

    @abstractmethod
    def array(self, tensor: Any) -> np.ndarray:
        """Return a copy of a tensor's values as an array."""

    @abstractmethod
    def dtype(self, tensor: Any) -> str:
        """Return the name of a tensor's element type."""

    @abstractmethod
    def unsendable(self) -> list[tuple[Any, str]]:
        """Return tensors that no collective accepts, with words of the error."""

    def unreducible(self) -> list[tuple[Any, str]]:
        """Return tensors that only non-reducing collectives accept, with words of the error."""
        return []

    def opaque(self, rank: int) -> dict[str, Any]:
        """Return a tensor of 6 rows for each element type that can be moved and not reduced, by the type's name."""
        return {}

    def elements(self, tensor: Any) -> np.ndarray:
        """Return the values of such a tensor, in a one-to-one form as numbers or texts."""
        return np.asarray(tensor)

    def unwritable(self) -> list[tuple[Any, str]]:
        """Return tensors that no collective in place accepts, with words of the error."""
        return []

    def copy(self, tensor: Any) -> Any:
        """Return a tensor of the same values."""
        return self.tensor(self.array(tensor), self.dtype(tensor))

    def number(self, tensor: Any) -> float:
        """Return the value of a tensor with one element."""
        return float(self.array(tensor).item())

    # --- several calls in flight; as here for front ends whose collectives have handles

    def begin(self, method: str, tensor: Any, **how: Any) -> Any:
        """Begin a call, which `finish` waits for."""
        return getattr(self.hvd, f"{method}_async")(tensor, **how)

    def finish(self, call: Any) -> Any:
        """Return the result of a call that was begun."""
        return self.hvd.synchronize(call)

    def at_once(self, calls: Sequence[Call]) -> list[Any]:
        """Return the results of calls that are in flight at the same time, in the order of the calls."""
        begun = [self.begin(method, tensor, **how) for method, tensor, how in calls]
        return [self.finish(call) for call in reversed(begun)][::-1]

    def broadcast_in_place(self, tensor: Any, root_rank: int) -> Any:
        """Overwrite a tensor with the root's, and return it."""
        assert self.hvd.broadcast_(tensor, root_rank) is tensor
        return tensor

    def reduced_rows(
        self, indices: list[int], rows: np.ndarray, total: int, *, name: str, op: int
    ) -> tuple[np.ndarray, int]:
        """Return the dense reduction of a sparse tensor with `total` rows, and the number of rows that it stores."""
        raise NotImplementedError

    # --- gradients

    def sum(self, tensor: Any) -> Any:
        """Return the sum of a tensor's elements, which can be differentiated."""
        return tensor.sum()

    def reduced(self, tensor: Any, op: str) -> Any:
        """Return the Min, Max or Product over the first dimension, which can be differentiated."""
        raise NotImplementedError

    def gradient(self, function: Any, values: Any) -> np.ndarray:
        """Return the gradient of `function(tensor)`, which returns a scalar, at `values`."""
        raise NotImplementedError

    def derivative(self, function: Any, tensor: Any) -> Any:
        """Return the gradient of `function(tensor)`, which returns a scalar, as a tensor that can be differentiated."""
        raise NotImplementedError

    def pullbacks(self, function: Any, values: Any, cotangents: Sequence[Sequence[Any]]) -> list[np.ndarray]:
        """Call a function of one tensor once, and return one gradient for each element of `cotangents`.

        Args:
            function: a function from a tensor to a list of tensors.
            values: the values of the tensor.
            cotangents: for each gradient, one array for each output of the function, or None for an output that the
                loss does not depend on.
        """
        raise NotImplementedError

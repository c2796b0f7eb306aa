"""The front ends as the conformance suite sees them: numpy in, numpy out. One class each."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

# Element types by name, and the numpy type in which their values are compared. numpy has no bfloat16.
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


class Torch:
    """farandole.torch."""

    name = "torch"

    @property
    def hvd(self) -> ModuleType:
        """The module under test."""
        import farandole.torch

        return farandole.torch

    def tensor(self, values: Any, dtype: str = "float32") -> Any:
        """Return a tensor of these values."""
        import torch

        return torch.tensor(np.asarray(values).tolist(), dtype=getattr(torch, dtype)).reshape(np.shape(values))

    def array(self, tensor: Any) -> np.ndarray:
        """Return a tensor's values."""
        import torch

        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).detach().numpy().copy()

    def dtype(self, tensor: Any) -> str:
        """Return the name of a tensor's element type."""
        return str(tensor.dtype).removeprefix("torch.")

    def gradient(self, function: Any, values: Any) -> np.ndarray:
        """Return the gradient of `function(tensor)`, which gives a scalar, at `values`."""
        import torch

        tensor = torch.tensor(np.asarray(values), requires_grad=True)
        function(tensor).backward()
        return self.array(tensor.grad)


# What a test leaves in a worker for its next function there.
KEPT: list[Any] = []

FRONT_ENDS = {front.name: front for front in (Torch(),)}

"""farandole.keras for the conformance tests: its collectives of values, with each backend of Keras."""

from __future__ import annotations

from typing import Any

import numpy as np

from frontends.front_end import DTYPES
from frontends.threads import Threads


class Keras(Threads):
    """farandole.keras with the backend of the process, which the runtime chooses."""

    module = "keras"
    # No groups of tensors, no process sets, no alltoall, no join, as in Horovod.
    has = frozenset({"ragged"})

    def tensor(self, values: Any, dtype: str = "float32") -> Any:
        import keras

        return keras.ops.convert_to_tensor(np.asarray(values).astype(DTYPES[dtype], order="C"), dtype=dtype)

    def array(self, tensor: Any) -> np.ndarray:
        import keras

        if self.dtype(tensor) == "bfloat16":
            tensor = keras.ops.cast(tensor, "float32")
        return np.array(keras.ops.convert_to_numpy(tensor))

    def dtype(self, tensor: Any) -> str:
        import keras

        return str(keras.backend.standardize_dtype(tensor.dtype))

    def opaque(self, rank: int) -> dict[str, Any]:
        numbers = np.arange(12).reshape(6, 2) + 12 * rank
        import keras

        return {name: keras.ops.convert_to_tensor(numbers.astype(name)) for name in ("uint16", "uint32")}

    def elements(self, tensor: Any) -> np.ndarray:
        import keras

        return np.asarray(keras.ops.convert_to_numpy(tensor))

    def unsendable(self) -> list[tuple[Any, str]]:
        return []  # What cannot be sent, the backend's own front end says.


class OnTensorFlow(Keras):
    """With TensorFlow, in the worlds of TensorFlow's front ends."""

    name = "keras_tensorflow"
    runtime = "tensorflow"
    worlds = ((1, "shm"), (3, "shm"))


class OnTorch(Keras):
    """With PyTorch."""

    name = "keras_torch"
    runtime = "keras on torch"
    worlds = ((2, "tcp"),)


class OnJax(Keras):
    """With JAX, which by default has no types of 64 bits."""

    name = "keras_jax"
    runtime = "keras on jax"
    worlds = ((2, "tcp"),)
    dtypes = tuple(dtype for dtype in DTYPES if dtype not in ("int64", "float64"))

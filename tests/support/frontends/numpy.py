"""farandole.numpy for the conformance tests."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np

from frontends.front_end import COMMON, DTYPES, WORLDS_OF_MPI, FrontEnd


class Numpy(FrontEnd):
    """farandole.numpy."""

    name = "numpy"
    module = "numpy"
    runtime = "torch"
    worlds = (*FrontEnd.worlds, *WORLDS_OF_MPI)
    has = frozenset({*COMMON, "broadcast in place", "handles", "in place", "numpy", "feedback", "recipes"})

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
        return [
            (np.array([None]), "Tensor type numpy.ndarray of object is not supported. Use broadcast_object"),
            (np.zeros(2, [("count", np.int32), ("thing", object)]), "Use broadcast_object"),
            (np.ma.masked_equal([1, 2], 2), "masked"),
        ]

    def unreducible(self) -> list[tuple[Any, str]]:
        structured = np.zeros(2, [("count", np.int32), ("mean", np.float32)])
        return [
            (np.ones(2, np.complex64), "which calculates with the elements. Pass the real and the imaginary part"),
            (structured, "Pass each field"),
            (np.array(["text"]), "is not supported in "),
            (np.ones(2, np.uint32), "uint32 is not supported in "),
        ]

    def opaque(self, rank: int) -> dict[str, Any]:
        numbers = np.arange(12).reshape(6, 2) + 12 * rank
        types = ["uint16", "uint32", "uint64", "complex64", "complex128", "longdouble", ">u4", "S4", "U5", "V3"]
        types += ["datetime64[ns]", "timedelta64[s]"]
        arrays = {name: (numbers.astype("S3") if name == "V3" else numbers).astype(name) for name in types}
        arrays["complex64"] *= 1 - 2j
        structured = np.zeros(6, [("count", np.int8), ("mean", np.float64), ("pair", np.uint16, 2), ("name", "U3")])
        structured["mean"], structured["pair"], structured["name"] = numbers[:, 0] / 3, numbers, f"r{rank}"
        arrays["structured"] = structured
        if "bfloat16" in self.dtypes:
            import ml_dtypes

            for name in ("float8_e4m3fn", "float8_e5m2", "int4"):
                arrays[name] = (numbers % 7).astype(getattr(ml_dtypes, name))
        return arrays

    def elements(self, tensor: Any) -> np.ndarray:
        return tensor.astype(np.float32) if tensor.dtype.name.startswith(("float8", "int4")) else tensor

    def unwritable(self) -> list[tuple[Any, str]]:
        return [
            (np.broadcast_to(np.float32(1), 3), "read-only"),
            ([1.0, 2.0], "writes over a numpy.ndarray, but got list"),
            (np.float64(1), "writes over a numpy.ndarray"),
        ]

"""farandole.mxnet for the conformance tests: each call is waited for, and MXNet's errors become farandole's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np

from frontends.front_end import COMMON, DTYPES, FrontEnd

COLLECTIVES = {
    f"{grouped}{name}{in_place}"
    for grouped in ("", "grouped_")
    for name in ("allgather", "allreduce", "alltoall", "broadcast", "reduce", "reducescatter")
    for in_place in ("", "_")
}


class _Module:
    """The module under test, with collectives that wait for their results."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._module, name)
        return _waiting(attribute) if name in COLLECTIVES else attribute


def _waiting(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        return settled(function(*arguments, **options))

    return call


def settled(result: Any) -> Any:
    """Wait until MXNet has computed a collective's result, and return it; raise farandole's error for MXNet's."""
    import mxnet as mx

    from farandole.mxnet.errors import translate

    try:
        for array in _arrays(result):
            array.wait_to_read()
    except mx.base.MXNetError as error:
        ours = translate(error)
        if ours is None:
            raise
        raise ours from error
    return result


def _arrays(result: Any) -> Iterator[Any]:
    if isinstance(result, (list, tuple)):
        for each in result:
            yield from _arrays(each)
    else:
        yield result


class MXNet(FrontEnd):
    """farandole.mxnet."""

    name = "mxnet"
    module = "mxnet"
    runtime = "mxnet"
    has = frozenset({*COMMON - {"join"}, "in place", "broadcast in place", "feedback", "recipes"})
    dtypes = tuple(dtype for dtype in DTYPES if dtype not in ("int16", "bfloat16"))
    compressions = ("none", "fp16")

    @functools.cached_property
    def hvd(self) -> Any:
        return _Module(super().hvd)

    def tensor(self, values: Any, dtype: str = "float32") -> Any:
        import mxnet as mx

        return mx.nd.array(np.asarray(values).astype(DTYPES[dtype], order="C"), dtype=dtype)

    def array(self, tensor: Any) -> np.ndarray:
        # What a compression remembers is what the engine sends.
        return getattr(tensor, "array", tensor).asnumpy()

    def dtype(self, tensor: Any) -> str:
        return np.dtype(tensor.dtype).name

    def unsendable(self) -> list[tuple[Any, str]]:
        import mxnet as mx

        return [
            (np.ones(2), "takes arrays of MXNet, but got ndarray"),
            (mx.nd.ones((2, 2)).tostype("row_sparse"), "a sparse array"),
        ]

    unwritable = unsendable

    # --- several calls in flight: all are

    def begin(self, method: str, tensor: Any, **how: Any) -> Any:
        return getattr(super().hvd, method)(tensor, **how)

    def finish(self, call: Any) -> Any:
        return settled(call)

"""farandole.jax for the conformance tests: eager, and in functions that JAX compiles.

Features that only compiled functions have, such as order and control flow, are tested in tests/integration/jax.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from frontends.front_end import COMMON, DTYPES, Call, FrontEnd
from frontends.threads import Threads

COLLECTIVES = {
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reduce",
    "grouped_reducescatter",
    "reduce",
    "reducescatter",
}


class Jax(FrontEnd):
    """Eager calls."""

    name = "jax"
    module = "jax"
    runtime = "jax"
    worlds = ((2, "tcp"),)
    # Through gradients, JAX has to know the shapes of all results.
    has = frozenset({*COMMON, "gradients", "jax", "feedback", "recipes"}) - {"ragged gradients"}

    def tensor(self, values: Any, dtype: str = "float32") -> Any:
        import jax.numpy as jnp

        # Cast by NumPy, as JAX would compile a program for each shape.
        return jnp.asarray(np.asarray(values).astype(DTYPES[dtype], order="C").astype(jnp.dtype(dtype)))

    def array(self, tensor: Any) -> np.ndarray:
        array = np.array(tensor)
        return array.astype(np.float32) if array.dtype.name == "bfloat16" else array

    def dtype(self, tensor: Any) -> str:
        return str(tensor.dtype)

    def unsendable(self) -> list[tuple[Any, str]]:
        return []

    def unreducible(self) -> list[tuple[Any, str]]:
        import jax
        import jax.numpy as jnp

        return [
            (jnp.ones(2, jnp.complex64), "complex64 is not supported in "),
            (jnp.ones(2, jnp.uint32), "uint32 is not supported in "),
            (jax.random.key(0), "Keys of jax.random can only be moved"),
        ]

    def opaque(self, rank: int) -> dict[str, Any]:
        import jax
        import jax.numpy as jnp

        numbers = np.arange(12).reshape(6, 2) + 12 * rank
        names = ["uint16", "uint32", "complex64", "float8_e4m3fn", "float8_e5m2", "int4", "uint2", "float4_e2m1fn"]
        arrays = {
            name: jnp.asarray(numbers % 2 if len(name) > 10 or "2" in name else numbers).astype(name) for name in names
        }
        keys = jax.random.split(jax.random.key(rank), (6, 2))
        return {**arrays, "keys": keys, "other keys": jax.random.split(jax.random.key(rank, impl="rbg"), 6)}

    def elements(self, tensor: Any) -> np.ndarray:
        import jax
        import jax.numpy as jnp

        if jnp.issubdtype(tensor.dtype, jax.dtypes.prng_key):
            return np.asarray(jax.random.key_data(tensor))
        array = np.asarray(tensor)
        return array if array.dtype.kind in "uc" else array.astype(np.float32)

    def gradient(self, function: Any, values: Any) -> np.ndarray:
        import jax
        import jax.numpy as jnp

        return self.array(jax.grad(function)(jnp.asarray(values)))

    def derivative(self, function: Any, tensor: Any) -> Any:
        import jax

        return jax.grad(function)(tensor)

    def pullbacks(self, function: Any, values: Any, cotangents: Sequence[Sequence[Any]]) -> list[np.ndarray]:
        import jax.numpy as jnp

        return list(map(self.array, self.pulled_back(function, cotangents)(jnp.asarray(values))))

    def pulled_back(self, function: Any, cotangents: Sequence[Sequence[Any]]) -> Callable[[Any], list[Any]]:
        """Return a function from an array to the gradients for `pullbacks`."""
        import jax
        import jax.numpy as jnp

        def gradients(array: Any) -> list[Any]:
            outputs, pull = jax.vjp(function, array)
            return [
                pull(
                    [
                        jnp.zeros_like(output) if each is None else jnp.asarray(each)
                        for output, each in zip(outputs, row, strict=True)
                    ]
                )[0]
                for row in cotangents
            ]

        return gradients

    def reduced(self, tensor: Any, op: str) -> Any:
        import jax.numpy as jnp

        return {"Min": jnp.min, "Max": jnp.max, "Product": jnp.prod}[op](tensor, 0)


class Compiled(Threads, Jax):
    """Each call is in a separate compiled function; simultaneous calls are in one function."""

    name = "jax-jit"
    # Each call is compiled, which takes longer than all else; eager calls show all types.
    dtypes = ("bfloat16", "float32", "int32", "bool")
    # A compiled function has no handles, and knows the shapes of all results before anything runs.
    has = Jax.has - {"feedback", "handles", "join", "ragged"}
    is_thorough = False

    @functools.cached_property
    def hvd(self) -> Any:
        return _Module(super().hvd)

    def gradient(self, function: Any, values: Any) -> np.ndarray:
        import jax
        import jax.numpy as jnp

        return self.array(_run(jax.grad(function), jnp.asarray(values)))

    def pulled_back(self, function: Any, cotangents: Sequence[Sequence[Any]]) -> Callable[[Any], list[Any]]:
        gradients = super().pulled_back(function, cotangents)
        return lambda array: list(_run(gradients, array))

    def at_once(self, calls: Sequence[Call]) -> list[Any]:
        if any("name" in how for _, _, how in calls):  # The test is about names: each in a function of its own.
            return super().at_once(calls)

        def all_of(tensors: list[Any]) -> list[Any]:
            return [
                getattr(self.hvd, method)(tensor, **how)
                for (method, _, how), tensor in zip(calls, tensors, strict=True)
            ]

        return list(_run(all_of, [tensor for _, tensor, _ in calls]))


class _Module:
    """The module under test, whose collectives run in compiled functions."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._module, name)
        if name not in COLLECTIVES:
            return attribute
        return lambda tensor, *arguments, **options: _run(lambda given: attribute(given, *arguments, **options), tensor)


def _run(function: Callable[[Any], Any], given: Any) -> Any:
    """Compile a function, unless it is already part of a compiled one, and return its result."""
    import jax

    import farandole.jax as hvd

    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(given)):
        return function(given)
    with hvd.translated():
        return jax.block_until_ready(jax.jit(function)(given))

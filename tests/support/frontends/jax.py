"""farandole.jax, as the tests see it: eager. In compiled functions it is tested in tests/integration/jax."""

from __future__ import annotations

from typing import Any

import numpy as np

from frontends.front_end import COMMON, DTYPES, FrontEnd


class Jax(FrontEnd):
    """Eager calls."""

    name = "jax"
    module = "jax"
    runtime = "jax"
    worlds = ((2, "tcp"),)
    # Through gradients, JAX has to know the shapes of all results.
    has = frozenset({*COMMON, "gradients", "jax", "recipes"}) - {"ragged gradients"}

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
        import jax
        import jax.numpy as jnp

        return [
            (jnp.ones(2, jnp.complex64), "complex64 is not supported. Pass the real and the imaginary part"),
            (jnp.ones(2, jnp.uint32), "uint32 is not supported"),
            (jax.random.key(0), "jax.random.key_data"),
        ]

    def gradient(self, function: Any, values: Any) -> np.ndarray:
        import jax
        import jax.numpy as jnp

        return self.array(jax.grad(function)(jnp.asarray(values)))

    def reduced(self, tensor: Any, op: str) -> Any:
        import jax.numpy as jnp

        return {"Min": jnp.min, "Max": jnp.max, "Product": jnp.prod}[op](tensor, 0)

"""A barrier that can also be a part of a compiled function."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from farandole.base.request_kind import Kind
from farandole.errors import InvalidRequestError
from farandole.jax.call_site import CallSite
from farandole.jax.primitive import bind
from farandole.jax.traced import group_of
from farandole.worker.collectives.barrier import barrier as eager_barrier
from farandole.worker.core.group import ProcessSet, global_process_set


def barrier(process_set: ProcessSet = global_process_set, after: Any = None) -> Any:
    """Wait until all ranks of the process set have called this.

    Args:
        process_set: the ranks that take part.
        after: arrays in any structure. In a compiled function, which is ordered only by its arrays, the barrier comes
            after they are computed, and before computations with the result.

    Returns:
        The arrays of `after`.

    Raises:
        ValueError: called in a compiled function, without arrays.
        HorovodInternalError: a worker was lost.

    Example:
        >>> x = hvd.barrier(after=x)
    """
    leaves = jax.tree.leaves(after)
    if not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        if core.unsafe_am_i_under_a_jit_DO_NOT_USE():
            raise InvalidRequestError(
                "barrier() inside of a function that JAX compiles would run only once, when the function is traced. "
                "Pass the arrays that it has to wait for, and use its result: x = hvd.barrier(after=x)."
            )
        jax.block_until_ready(after)
        eager_barrier(process_set)
        return after
    flag, _ = jax.lax.optimization_barrier((jnp.zeros(1, jnp.uint8), leaves))
    site = CallSite(Kind.ALLREDUCE, group=group_of(process_set, "barrier"), size=len(process_set.ranks))
    (flag,) = bind([flag], site)
    return jax.lax.optimization_barrier((after, flag))[0]

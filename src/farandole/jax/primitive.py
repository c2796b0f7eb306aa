"""Collectives in functions that JAX transforms and compiles: one primitive for all of them.

It has no effect in the sense of JAX's types, so that `jit` calls compiled functions by its fast path, and functions
with collectives can be differentiated, mapped, looped over and rematerialized like others. To XLA, each call has a side
effect, so calls are neither removed nor merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jax.interpreters import partial_eval as pe

from farandole.base.request_kind import Kind, Rows
from farandole.errors import InvalidRequestError
from farandole.jax import plugin
from farandole.jax.call_site import CallSite
from farandole.jax.lowering import lower
from farandole.worker.core.dtype import Adasum

collective_p = Primitive("farandole_collective")
collective_p.multiple_results = True


def bind(arrays: Sequence[Any], site: CallSite) -> list[Any]:
    """Return the results of a collective on arrays of a function that is being traced.

    Raises:
        ValueError: the shapes do not allow it.
        LibraryError: the plugin cannot be used.
    """
    plugin.require()
    for array in arrays:
        _check_rows(site, array.shape)
    results: list[Any] = collective_p.bind(*arrays, site=site)
    return results


def _check_rows(site: CallSite, shape: Sequence[int]) -> None:
    if site.kind.rows in (Rows.SHARED, Rows.EXCHANGED) and shape[0] % site.size:
        raise InvalidRequestError(
            f"{site.operation}: the first dimension of the array ({shape[0]}) is not a multiple of the number of "
            f"workers ({site.size}). Inside of a compiled function it has to be, because the result has the "
            "same shape on all workers: pad the array, or call this outside of the function."
        )


@collective_p.def_abstract_eval
def _shapes(*avals: Any, site: CallSite) -> list[Any]:
    return [aval.update(shape=site.result_shape(aval.shape), weak_type=False) for aval in avals]


@cache
def _compiled(site: CallSite) -> Any:
    """Return a compiled function for a collective of concrete arrays, as in `jax.grad` outside of `jit`."""

    def collective(*arrays: Any) -> Any:
        return collective_p.bind(*arrays, site=site)

    return jax.jit(collective)


collective_p.def_impl(lambda *arrays, site: _compiled(site)(*arrays))


def _batch(arrays: Sequence[Any], dimensions: Sequence[Any], *, site: CallSite) -> tuple[list[Any], list[Any]]:
    """Make one collective of larger arrays from a mapped collective, if this is equivalent."""
    if site.kind is Kind.ALLREDUCE and site.op == Adasum:
        raise NotImplementedError(
            "allreduce with op=hvd.Adasum cannot be mapped by jax.vmap: it looks at whole arrays, and those of all "
            "elements of the map would count as one. Use jax.lax.map."
        )
    # Elements are reduced or moved one by one, so the mapped dimension may stay; but rows have to be the first one.
    if site.kind.rows is not Rows.SAME:
        placed = [
            array if dimension is None else jax.numpy.moveaxis(array, dimension, 1)
            for array, dimension in zip(arrays, dimensions, strict=True)
        ]
        return bind(placed, site), [None if dimension is None else 1 for dimension in dimensions]
    return bind(arrays, site), list(dimensions)


batching.primitive_batchers[collective_p] = _batch
mlir.register_lowering(collective_p, lower, cacheable=False)
mlir.register_lowering(collective_p, partial(lower, backend="cuda"), platform="cuda", cacheable=False)


def _keep(used: Sequence[bool], equation: Any) -> tuple[list[bool], Any]:
    """Keep a collective whose results are not used: another rank, which uses them, may be waiting."""
    return [True] * len(equation.invars), equation


pe.dce_rules[collective_p] = _keep

"""Derivatives of traced collectives: forward (JVP), and backward by transposition.

The backward rules are those that the collectives declare (`worker.collectives`), in a form that is the same on all
ranks, so that all compile one program: for example, an allgather's own rows of the average are a reducescatter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad

from farandole.base.request_kind import Kind
from farandole.errors import InvalidRequestError
from farandole.jax.call_site import CallSite
from farandole.jax.primitive import bind, collective_p
from farandole.worker.core.dtype import Adasum, Average, Max, Min, Product, Sum


def _forward(arrays: Sequence[Any], tangents: Sequence[Any], *, site: CallSite) -> tuple[list[Any], list[Any]]:
    results = bind(arrays, site)
    # Those of integers have no derivative.
    moved = [index for index, array in enumerate(arrays) if jnp.issubdtype(array.dtype, jnp.inexact)]
    outgoing: list[Any] = [ad.Zero(jax.typeof(result).to_tangent_aval()) for result in results]
    if not any(type(tangents[index]) is not ad.Zero for index in moved):
        return results, outgoing
    given = [ad.instantiate_zeros(tangents[index]) for index in moved]
    inputs = [arrays[index] for index in moved]
    for index, tangent in zip(moved, _tangents(inputs, given, site), strict=True):
        outgoing[index] = tangent
    return results, outgoing


def _tangents(arrays: Sequence[Any], tangents: Sequence[Any], site: CallSite) -> Sequence[Any]:
    """Return the tangents of the results."""
    if site.kind is Kind.REDUCE and site.op in (Average, Sum):
        # What other ranks than the root get back has no part in it.
        return bind(tangents, site.of_part("tangent", kind=Kind.ALLREDUCE, only_at_root=True))
    if site.op not in (Min, Max, Product) or "op" not in site.options():
        return bind(tangents, site.of_part("tangent"))
    if site.kind is not Kind.ALLREDUCE:
        raise InvalidRequestError(
            f"{site.kind.function} has a gradient for Average and Sum only. Use allreduce, which has one for Min, "
            "Max and Product too, and take this rank's part of the result."
        )
    return (_of_product if site.op == Product else _of_extreme)(arrays, tangents, site)


def _of_extreme(arrays: Sequence[Any], tangents: Sequence[Any], site: CallSite) -> list[Any]:
    """Return the average of the tangents of the ranks that have the minimum or maximum."""
    # A negative factor turns the largest into the smallest.
    reached = site.op if site.prescale >= 0 else Min + Max - site.op
    extremes = _reduce([jax.lax.stop_gradient(array) for array in arrays], reached, site, "extremes")
    mine = [(array == extreme).astype(array.dtype) for array, extreme in zip(arrays, extremes, strict=True)]
    owners = _reduce(mine, Sum, site, "owners")
    sums = _reduce([own * tangent for own, tangent in zip(mine, tangents, strict=True)], Sum, site, "tangent")
    # No rank owns an element that is not a number.
    return [
        total * (site.prescale * site.postscale) / jnp.where(owner == 0, 1, owner)
        for total, owner in zip(sums, owners, strict=True)
    ]


def _of_product(arrays: Sequence[Any], tangents: Sequence[Any], site: CallSite) -> list[Any]:
    """Return the tangents of the product of the ranks' elements, all of which are gathered for this.

    Unlike a division of the product by the rank's element, this can be differentiated again where elements are 0.
    """

    def product(rows: Any) -> Any:
        return jnp.prod(rows, 0) * site.postscale

    gathered, moved = (
        _gather([array * site.prescale for array in given], site, part)
        for given, part in ((arrays, "factors"), (tangents, "tangent"))
    )
    return [jax.jvp(product, (rows,), (by,))[1] for rows, by in zip(gathered, moved, strict=True)]


def _gather(arrays: Sequence[Any], site: CallSite, part: str) -> list[Any]:
    """Return the ranks' arrays, each as one row."""
    gather = site.of_part(part, kind=Kind.ALLGATHER, has_plain_gradient=True)
    return bind([array[None] for array in arrays], gather)


def _reduce(arrays: Sequence[Any], op: int, site: CallSite, part: str) -> list[Any]:
    return bind(arrays, site.of_part(part, op=op, prescale=1.0, postscale=1.0))


def _backward(gradients: Sequence[Any], *arrays: Any, site: CallSite) -> list[Any]:
    """Return the gradients of the arrays that the results depend on; None for the others."""
    given = [ad.instantiate_zeros(gradient) for gradient in gradients]
    through = _gradients(given, site)
    return [
        gradient if ad.is_undefined_primal(array) else None for array, gradient in zip(arrays, through, strict=True)
    ]


def _gradients(gradients: Sequence[Any], site: CallSite) -> Sequence[Any]:
    if site.kind is Kind.ALLGATHER:
        return bind(gradients, _part(site, kind=Kind.REDUCESCATTER, op=_op_of_gradient(site)))
    if site.kind is Kind.BROADCAST:
        return bind(gradients, _part(site, kind=Kind.ALLREDUCE, op=_op_of_gradient(site), only_at_root=True))
    if site.kind is Kind.REDUCESCATTER:
        gathered = bind(gradients, _part(site, kind=Kind.ALLGATHER))
        return _times(gathered, _factor(site) * (1 if site.has_plain_gradient else site.size))
    assert site.kind is Kind.ALLTOALL or site.op in (Average, Sum, Adasum)
    if site.only_at_root:
        return _times(bind(gradients, _part(site, kind=Kind.BROADCAST)), _factor(site))
    return bind(gradients, site.of_part("gradient"))


def _part(site: CallSite, **changes: Any) -> CallSite:
    """Return a collective of the gradient, whose gradient is the same as with PyTorch.

    With PyTorch, the gradient of an allgather or a broadcast consists of allreduces, whose gradient is their transpose,
    and that of a reducescatter is an allgather with the gradient that users get.
    """
    plain = site.has_plain_gradient or site.kind is not Kind.REDUCESCATTER
    changes = {"only_at_root": False, "prescale": 1.0, "postscale": 1.0, "has_plain_gradient": plain, **changes}
    return site.of_part("gradient", **changes)


def _op_of_gradient(site: CallSite) -> int:
    return Sum if site.has_plain_gradient else Average


def _factor(site: CallSite) -> float:
    """Return the factor of each rank's elements in a reduction."""
    return site.prescale * site.postscale / (site.size if site.op == Average else 1)


def _times(arrays: Sequence[Any], factor: float) -> Sequence[Any]:
    return arrays if factor == 1.0 else [array * factor for array in arrays]


ad.primitive_jvps[collective_p] = _forward
ad.primitive_transposes[collective_p] = _backward

"""Converts a call of a collective on traced arrays to the primitive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import jax

from farandole.base.request_kind import Kind
from farandole.errors import InvalidRequestError
from farandole.jax import gradients  # noqa: F401  (registers them with JAX)
from farandole.jax.call_site import CallSite
from farandole.jax.carriers import carried, restored
from farandole.jax.primitive import bind
from farandole.worker.collectives.arguments import factor
from farandole.worker.collectives.compressed import check_compressible
from farandole.worker.collectives.compression import NO_POWERSGD, Feedback, PowerSGD, Recipe
from farandole.worker.collectives.declaration import Options
from farandole.worker.collectives.differentiation import DifferentiableCall
from farandole.worker.collectives.front_end import FrontEnd
from farandole.worker.collectives.rows import rows_to_send
from farandole.worker.core.dtype import WireForm
from farandole.worker.core.group import ProcessSet


def run(front: FrontEnd[Any], call: DifferentiableCall, arrays: Sequence[Any]) -> list[Any]:
    """Return the results of a call on traced arrays.

    Raises:
        ValueError: an array is not valid, or not in a compiled function.
    """
    site = _site_of(call)
    arrays = _rows_that_move(call, site, arrays)
    for array in arrays:
        call.collective.check_member(front, array, front.traced_dtype(array), site.operation, call.options)  # type: ignore
    results = bind([carried(array) for array in arrays], site)
    if call.collective.kind in (Kind.ALLGATHER, Kind.ALLTOALL):
        call.received = [_counts(site, array.shape[0]) for array in arrays]
    return [restored(result, array) for result, array in zip(results, arrays, strict=True)]


def _counts(site: CallSite, rows: int) -> list[int]:
    return [rows if site.kind is Kind.ALLGATHER else rows // site.size] * site.size


def _site_of(call: DifferentiableCall) -> CallSite:
    group = group_of(call.process_set, call.collective.name)
    size = len(call.process_set.ranks)
    options = dict(call.options)
    options.pop("splits", None)
    # A wrong type is an error of this call, not of the program when it is compiled.
    for value in options.values():
        factor(value)
    known = {each.name for each in fields(CallSite)}
    further = tuple((name, factor(options.pop(name))) for name in sorted(options.keys() - known))
    return CallSite(
        kind=call.collective.kind,
        grouped=call.form.grouped,
        name=call.name,
        group=group,
        size=size,
        further=further,
        **options,
        **_wire(call.compression, options),
    )


def group_of(process_set: ProcessSet, operation: str) -> int:
    """Return the native number of a process set.

    Raises:
        ValueError: it is not registered.
    """
    if process_set.process_set_id is None:
        raise InvalidRequestError(
            f"{operation.capitalize()}: Process set provided does not exist, or has not been registered. "
            "Pass it to init() or add_process_set() on all ranks first."
        )
    return process_set.process_set_id


def _rows_that_move(call: DifferentiableCall, site: CallSite, arrays: Sequence[Any]) -> Sequence[Any]:
    """Return the rows of the arrays that an alltoall sends: with splits, rows may be left over.

    Raises:
        ValueError: the splits are not valid, or not in a compiled function.
    """
    splits = call.options.get("splits")
    if splits is None or not arrays[0].shape:
        return arrays
    if any(isinstance(each, jax.core.Tracer) for each in jax.tree.leaves(splits)):
        raise InvalidRequestError(
            "alltoall: inside of a compiled function, splits have to be numbers that are known when it is traced, such "
            "as a list. Pass one, or call this outside of the function."
        )
    rows = rows_to_send(splits, arrays[0].shape[0], site.size)
    if len(set(rows)) > 1:
        raise InvalidRequestError(
            f"alltoall: splits are {rows}, but a compiled function has to know the shape of its results, so that all "
            "parts have to be equal. Pad them to one length, or call this outside of the function."
        )
    return [array[: sum(rows)] for array in arrays]


def _wire(compression: Any, options: Options) -> dict[str, Any]:
    if compression is None:
        return {}
    if isinstance(getattr(compression, "recipe", compression), PowerSGD):
        raise InvalidRequestError(NO_POWERSGD)
    if isinstance(compression, Feedback):
        raise InvalidRequestError(
            "a compression with feedback keeps what it has not sent, but a compiled function keeps no state: "
            "pass Compression.int8 or Compression.topk(...) itself, or use hvd.distributed(optimizer), whose state has "
            "room for it."
        )
    assert isinstance(compression, Recipe)
    form = getattr(compression, "form", None)
    if not isinstance(form, WireForm):
        raise InvalidRequestError(f"{compression!r} cannot be used inside of a compiled function.")
    check_compressible(options["op"])
    return {"compression": form, "compression_ratio": compression.ratio}  # type: ignore[attr-defined]

"""Places: where dense CPU gradients live in the arena, and travel from.

A gradient is copied to its place when it is launched; from then on `param.grad` is a view of it. Where this rank's own
gradient must outlive its reduction, it goes beside the place, which is for the reduced one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from farandole.core.binding import NativeRequest
from farandole.core.dtype import Kind
from farandole.core.request import make_request
from farandole.core.session import Session
from farandole.core.submission import Submission
from farandole.torch import buckets
from farandole.torch.collectives import native_dtype
from farandole.torch.compression import Compression
from farandole.torch.entries import Bundle, Entry
from farandole.torch.reduce_options import ReduceOptions


def is_wanted(entry: Entry, options: ReduceOptions) -> bool:
    """Say whether a gradient is to have a place, as far as its first steps have shown."""
    parameter = entry.parameter
    return (
        parameter.grad is not None
        and parameter.device.type == "cpu"
        and options.compression is Compression.none
        and options.feedback is None
        and (entry.sparse_as_dense or entry.sparse_dim is None)
    )


def give(session: Session, entries: Sequence[Entry], options: ReduceOptions, *, keeps: bool) -> None:
    """Give gradients a place, and prepare the requests of those bundles that are complete now.

    Args:
        session: whose arena it is.
        entries: those whose gradients have none.
        options: how they will be reduced.
        keeps: whether this rank's own gradients must outlive their reduction.
    """
    parameters = [entry.parameter for entry in entries]
    for entry, place in zip(entries, buckets.allocate(session.engine, parameters), strict=True):
        entry.place = place
        gradient = entry.parameter.grad
        if gradient is not None and not gradient.is_sparse:
            entry.parameter.grad = place.copy_(gradient)
    if keeps:
        for entry, local in zip(entries, buckets.allocate(session.engine, parameters), strict=True):
            entry.local = local
    group = options.group(session)
    for bundle in {id(entry.bundle): entry.bundle for entry in entries}.values():
        _prepare(bundle, options, group)


def put(entry: Entry, share: float) -> bool:
    """Put a gradient where it travels from, zeros if there is none; say whether it can.

    Args:
        entry: has a place.
        share: by what this rank's gradient is multiplied.
    """
    if entry.local is not None:
        return _put_beside(entry, entry.local, share)
    parameter, place = entry.parameter, entry.place
    assert place is not None
    if not parameter.requires_grad:
        return False
    gradient = parameter.grad
    if gradient is None and entry.sparse_dim is None:
        entry.absent = True
        parameter.grad = place.zero_()
    elif gradient is None or gradient.is_sparse:
        if entry.travels_sparse:
            return False
        parameter.grad = place.copy_(entry.dense())
    elif gradient is not place:
        entry.sparse_dim = None
        # After create_graph=True a gradient requires gradients; what is reduced does not.
        parameter.grad = place.copy_(gradient.detach() if gradient.requires_grad else gradient)
    if share == 0.0:
        place.zero_()
    elif share != 1.0:
        place.mul_(share)
    return True


def weight(bundle: Bundle, share: float) -> None:
    """Weight gradients that are in their places for the world in which they will be reduced."""
    if share != bundle.share and bundle.share:
        for entry in bundle.entries:
            _origin(entry).mul_(share / bundle.share)
    bundle.share = share


def take_back(entries: Sequence[Entry]) -> None:
    """Let reduced gradients be those of their parameters."""
    for entry in entries:
        assert entry.place is not None
        # Somebody may have put another tensor there meanwhile.
        if entry.parameter.grad is not entry.place or entry.sparse_dim is not None:
            entry.store(entry.place)


def _put_beside(entry: Entry, local: torch.Tensor, share: float) -> bool:
    # All of a bundle or none: what is put here cannot be taken for a gradient on the general way.
    for each in entry.bundle.entries:
        if each.travels_sparse or not each.parameter.requires_grad:
            return False
    gradient = entry.parameter.grad
    if gradient is None and entry.sparse_dim is None:
        entry.absent = True
        local.zero_()
    elif gradient is None or gradient.is_sparse:
        _copy_weighted(entry.dense(), share, local)
    else:
        entry.sparse_dim = None
        _copy_weighted(gradient.detach() if gradient.requires_grad else gradient, share, local)
    entry.parameter.grad = entry.place
    return True


def _copy_weighted(gradient: torch.Tensor, share: float, out: torch.Tensor) -> None:
    """Put a gradient into `out`, multiplied; one that does not count may be anything."""
    if share == 0.0:
        out.zero_()
    elif share == 1.0:
        out.copy_(gradient)
    else:
        torch.mul(gradient, share, out=out)


def _prepare(bundle: Bundle, options: ReduceOptions, group: int) -> None:
    places = [entry.place for entry in bundle.entries]
    if any(place is None for place in places):
        return
    bundle.submission = Submission([_request(entry, options, group) for entry in bundle.entries])
    bundle.nbytes = sum(place.nbytes for place in places if place is not None)


def _request(entry: Entry, options: ReduceOptions, group: int) -> NativeRequest:
    assert entry.place is not None
    return make_request(
        Kind.ALLREDUCE,
        f"allreduce.{entry.name}",
        dtype=native_dtype(entry.place),
        op=options.op,
        group=group,
        shape=entry.place.shape,
        prescale=options.prescale,
        postscale=options.postscale,
        input=_origin(entry).data_ptr(),
        output=entry.place.data_ptr(),
    )


def _origin(entry: Entry) -> torch.Tensor:
    """Return where a gradient travels from."""
    origin = entry.place if entry.local is None else entry.local
    assert origin is not None
    return origin

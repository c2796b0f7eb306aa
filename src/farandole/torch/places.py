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
from farandole.torch.manner import Manner
from farandole.torch.slots import Bundle, Slot


def is_wanted(slot: Slot, manner: Manner) -> bool:
    """Say whether a gradient is to have a place, as far as its first steps have shown."""
    parameter = slot.parameter
    return (
        parameter.grad is not None
        and parameter.device.type == "cpu"
        and manner.compression is Compression.none
        and manner.feedback is None
        and (slot.sparse_as_dense or slot.sparse_dim is None)
    )


def give(session: Session, slots: Sequence[Slot], manner: Manner, *, keeps: bool) -> None:
    """Give gradients a place, and prepare the requests of those bundles that are complete now.

    Args:
        session: whose arena it is.
        slots: those whose gradients have none.
        manner: how they will be reduced.
        keeps: whether this rank's own gradients must outlive their reduction.
    """
    parameters = [slot.parameter for slot in slots]
    for slot, place in zip(slots, buckets.allocate(session.engine, parameters), strict=True):
        slot.place = place
        gradient = slot.parameter.grad
        if gradient is not None and not gradient.is_sparse:
            slot.parameter.grad = place.copy_(gradient)
    if keeps:
        for slot, local in zip(slots, buckets.allocate(session.engine, parameters), strict=True):
            slot.local = local
    group = manner.group(session)
    for bundle in {id(slot.bundle): slot.bundle for slot in slots}.values():
        _prepare(bundle, manner, group)


def put(slot: Slot, share: float) -> bool:
    """Put a gradient where it travels from, zeros if there is none; say whether it can.

    Args:
        slot: has a place.
        share: by what this rank's gradient is multiplied.
    """
    if slot.local is not None:
        return _put_beside(slot, slot.local, share)
    parameter, place = slot.parameter, slot.place
    assert place is not None
    if not parameter.requires_grad:
        return False
    gradient = parameter.grad
    if gradient is None and slot.sparse_dim is None:
        slot.absent = True
        parameter.grad = place.zero_()
    elif gradient is None or gradient.is_sparse:
        if slot.travels_sparse:
            return False
        parameter.grad = place.copy_(slot.dense())
    elif gradient is not place:
        slot.sparse_dim = None
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
        for slot in bundle.slots:
            _origin(slot).mul_(share / bundle.share)
    bundle.share = share


def take_back(slots: Sequence[Slot]) -> None:
    """Let reduced gradients be those of their parameters."""
    for slot in slots:
        assert slot.place is not None
        # Somebody may have put another tensor there meanwhile.
        if slot.parameter.grad is not slot.place or slot.sparse_dim is not None:
            slot.store(slot.place)


def _put_beside(slot: Slot, local: torch.Tensor, share: float) -> bool:
    # All of a bundle or none: what is put here cannot be taken for a gradient on the general way.
    for each in slot.bundle.slots:
        if each.travels_sparse or not each.parameter.requires_grad:
            return False
    gradient = slot.parameter.grad
    if gradient is None and slot.sparse_dim is None:
        slot.absent = True
        local.zero_()
    elif gradient is None or gradient.is_sparse:
        _copy_weighted(slot.dense(), share, local)
    else:
        slot.sparse_dim = None
        _copy_weighted(gradient.detach() if gradient.requires_grad else gradient, share, local)
    slot.parameter.grad = slot.place
    return True


def _copy_weighted(gradient: torch.Tensor, share: float, out: torch.Tensor) -> None:
    """Put a gradient into `out`, multiplied; one that does not count may be anything."""
    if share == 0.0:
        out.zero_()
    elif share == 1.0:
        out.copy_(gradient)
    else:
        torch.mul(gradient, share, out=out)


def _prepare(bundle: Bundle, manner: Manner, group: int) -> None:
    places = [slot.place for slot in bundle.slots]
    if any(place is None for place in places):
        return
    bundle.submission = Submission([_request(slot, manner, group) for slot in bundle.slots])
    bundle.nbytes = sum(place.nbytes for place in places if place is not None)


def _request(slot: Slot, manner: Manner, group: int) -> NativeRequest:
    assert slot.place is not None
    return make_request(
        Kind.ALLREDUCE,
        f"allreduce.{slot.name}",
        dtype=native_dtype(slot.place),
        op=manner.op,
        group=group,
        shape=slot.place.shape,
        prescale=manner.prescale,
        postscale=manner.postscale,
        input=_origin(slot).data_ptr(),
        output=slot.place.data_ptr(),
    )


def _origin(slot: Slot) -> torch.Tensor:
    """Return where a gradient travels from."""
    origin = slot.place if slot.local is None else slot.local
    assert origin is not None
    return origin

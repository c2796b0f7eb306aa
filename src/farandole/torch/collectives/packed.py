"""Tensors of a GPU that are sent in one request, because each request costs kernels and events, whatever its size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch


class Packed(NamedTuple):
    """The requests for some tensors, and the places of the tensors in them.

    Attributes:
        sent: the tensor that each request reads.
        received: the tensor that each request writes.
        names: the name of each request.
        pieces: the result of each tensor; it is in one of `received`.
    """

    sent: list[torch.Tensor]
    received: list[torch.Tensor]
    names: list[str]
    pieces: list[torch.Tensor]


def packed(tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], names: Sequence[str]) -> Packed:
    """Copy tensors of one GPU and element type into one tensor, which is reduced in place.

    A single tensor, or one on the host, where the engine fuses requests, is sent from its own memory to its output.

    Args:
        tensors: the tensors, of any shapes.
        outputs: an output for each tensor, which is used if the tensor is not copied.
        names: a name for each tensor; a request has the name of its first tensor.
    """
    alike: dict[object, list[int]] = {}
    for index, tensor in enumerate(tensors):
        key = index if tensor.is_cpu else (tensor.device, tensor.dtype)
        alike.setdefault(key, []).append(index)
    pieces = list(outputs)
    sent, received = [], []
    for places in alike.values():
        first, *others = places
        if not others:
            sent.append(tensors[first])
            received.append(outputs[first])
            continue
        flat = torch.cat([tensors[place].reshape(-1) for place in places])
        sent.append(flat)
        received.append(flat)
        lengths = [tensors[place].numel() for place in places]
        for place, piece in zip(places, flat.split(lengths), strict=True):
            pieces[place] = piece.view(tensors[place].shape)
    return Packed(sent, received, [names[places[0]] for places in alike.values()], pieces)

"""Broadcasting a model's parameters."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any

import torch

from farandole.errors import InvalidRequestError, MismatchError
from farandole.torch import collectives
from farandole.torch.no_compile import no_compile
from farandole.torch.objects import allgather_object, broadcast_object
from farandole.worker.core.basics import current
from farandole.worker.core.group import ProcessSet, global_process_set
from farandole.worker.gradients.parameter_check import digest_of

BROADCAST_ADVICE = "hvd.broadcast_parameters(model.state_dict(), root_rank=0)"
"""The line that is missing in a script whose ranks train with different parameters."""
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def broadcast_parameters(params: Any, root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Broadcast the root's parameters, in place.

    Args:
        params: `model.state_dict()`, `model.named_parameters()` or `model.parameters()`, or a list of their items.
            Values of a dict that are not tensors are replaced by the root's; elsewhere they are not changed.
        root_rank: the rank, in the world, whose parameters are sent.
        process_set: the ranks that take part; no-op on others.

    Raises:
        ValueError: `params` is none of these.
        HorovodInternalError: the ranks' parameters do not match, or a worker was lost.
    """
    named = _named(params)
    session = current()
    session.group_of(process_set, "broadcast_parameters")
    if not process_set.included() or session.only_arrived:
        return
    tensors = [(name, value) for name, value in named if isinstance(value, torch.Tensor)]
    _check_same_parameters(params, [name for name, _ in tensors], process_set)
    broadcast_tensors(tensors, root_rank, process_set)
    if isinstance(params, MutableMapping):
        _broadcast_others(params, root_rank, process_set)


def _named(params: Any) -> list[tuple[str, Any]]:
    if isinstance(params, Mapping):
        return sorted(params.items())
    if isinstance(params, (torch.Tensor, torch.nn.Module)) or not isinstance(params, Iterable):
        raise InvalidRequestError(
            f"invalid params of type: {type(params)}. Pass model.state_dict(), model.named_parameters() or "
            "model.parameters()."
        )
    named = []
    for index, entry in enumerate(params):
        if isinstance(entry, torch.Tensor):
            named.append((f"parameter.{index}", entry))
        elif isinstance(entry, tuple) and len(entry) == 2:
            named.append(entry)
        else:
            raise InvalidRequestError(
                f"invalid params of type: {type(params)} with an entry of type {type(entry)}. Entries are tensors or "
                "pairs of a name and a tensor."
            )
    return named


def _check_same_parameters(params: Any, names: Sequence[str], process_set: ProcessSet) -> None:
    """Compare what the ranks are about to broadcast: if one of them lacks a name, or passes no dict, whose other values
    are sent too, the others would wait forever.

    Raises:
        MismatchError: the forms or names differ; raised on all ranks.
    """
    form = "a dict" if isinstance(params, MutableMapping) else "another iterable"
    answers = all_if_different([form, *names], "broadcast_parameters", process_set)
    if not answers:
        return
    for rank, (theirs, *_) in zip(process_set.ranks, answers, strict=True):
        if theirs != answers[0][0]:
            raise MismatchError(
                f"broadcast_parameters() got different kinds of arguments: rank {process_set.ranks[0]} has "
                f"{answers[0][0]}, and rank {rank} has {theirs}. Pass model.state_dict() on all ranks."
            )
    everyone = [theirs[1:] for theirs in answers]
    shared = set(everyone[0]).intersection(*everyone)
    alone = {rank: sorted(set(theirs) - shared) for rank, theirs in zip(process_set.ranks, everyone, strict=True)}
    texts = [f"rank {rank} has {_some(extra)}, which not all ranks have" for rank, extra in alone.items() if extra]
    raise MismatchError(
        "broadcast_parameters() got different parameters on different ranks: "
        f"{'; '.join(texts) or 'the same ones in different orders'}. Build the same model on all ranks."
    )


def all_if_different(texts: Sequence[str], name: str, process_set: ProcessSet) -> list[list[str]]:
    """Return the texts of each rank, on all ranks, if they differ; otherwise an empty list. A collective."""
    digest = hashlib.sha256("\0".join(texts).encode()).digest()
    if len(set(allgather_object(digest, f"{name}.digest", process_set))) == 1:
        return []
    return allgather_object(list(texts), f"{name}.texts", process_set)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def broadcast_tensors(
    named: Iterable[tuple[str, torch.Tensor]], root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Broadcast the root's tensors, in place; they may have any element type and strides."""
    begun = []
    for name, tensor in named:
        tensor = tensor.detach()
        dense = tensor.contiguous()
        begun.append((collectives.broadcast_async_(dense, root_rank, name, process_set), tensor, dense))
    for handle, tensor, dense in begun:
        collectives.synchronize(handle)
        if dense.data_ptr() != tensor.data_ptr():
            tensor.copy_(dense)


def _broadcast_others(params: MutableMapping[str, Any], root_rank: int, process_set: ProcessSet) -> None:
    others = {name: value for name, value in params.items() if not isinstance(value, torch.Tensor)}
    # The root decides whether there are any: a rank that alone has some would wait forever.
    params.update(broadcast_object(others, root_rank, "broadcast_parameters.others", process_set))


@no_compile
def parameters_digest(parameters: Iterable[torch.Tensor]) -> int:
    """Return a hash of the bits of parameters."""
    sums = [
        _as_words(parameter.detach()).sum(dtype=torch.int64)
        for parameter in parameters
        if parameter.layout is torch.strided and parameter.device.type != "meta"
    ]
    by_device: dict[torch.device, list[int]] = {}
    for device in dict.fromkeys(each.device for each in sums):  # One transfer from each device.
        by_device[device] = torch.stack([each for each in sums if each.device == device]).tolist()
    return digest_of([number for numbers in by_device.values() for number in numbers])


def _as_words(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's bits as integers, without a copy if it is dense."""
    flat = tensor.resolve_conj().resolve_neg().contiguous().flatten()
    return flat.view(_WORDS[flat.element_size()] if flat.element_size() in _WORDS else torch.uint8)

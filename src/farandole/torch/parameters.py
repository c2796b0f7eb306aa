"""Giving all workers the same start: parameters and the optimizer's state, from one rank to all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, NamedTuple

import torch

from farandole.core.basics import current
from farandole.core.errors import InvalidRequestError
from farandole.torch import collectives
from farandole.torch.objects import broadcast_object


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Give every rank the root's parameters, in place.

    Args:
        params: `model.state_dict()`, `model.named_parameters()` or `model.parameters()`, or a list made of them. Values
            of a dict that are not tensors are replaced by the root's; elsewhere they are left as they are.
        root_rank: whose parameters.

    Raises:
        ValueError: `params` is none of these.
        HorovodInternalError: the ranks' parameters do not fit together, or a worker was lost.
    """
    named = _named(params)
    _broadcast_tensors([(name, value) for name, value in named if isinstance(value, torch.Tensor)], root_rank)
    if isinstance(params, MutableMapping):
        _broadcast_others(params, root_rank)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Give every rank the root's optimizer state and options (learning rate and so on), in place.

    Before the first step there is no state yet, and only the options travel. Python values keep their types.

    Args:
        optimizer: plain or distributed, with parameters of the same shapes on all ranks.
        root_rank: whose state.
        model: accepted for Horovod's scripts; not needed.
    """
    is_root = current().world.rank == root_rank
    tensors: list[torch.Tensor] = []
    skeleton = _take_tensors(optimizer.state_dict(), tensors) if is_root else None
    specs = [(tuple(tensor.shape), tensor.dtype) for tensor in tensors]
    skeleton, specs = broadcast_object((skeleton, specs), root_rank, "broadcast_optimizer_state")
    if not is_root:
        tensors = [torch.empty(shape, dtype=dtype) for shape, dtype in specs]
    _broadcast_tensors([(f"optimizer_state.{index}", tensor) for index, tensor in enumerate(tensors)], root_rank)
    if not is_root:
        _load_in_place(optimizer, _put_tensors(skeleton, tensors))


def _named(params: Any) -> list[tuple[str, Any]]:
    if isinstance(params, Mapping):
        return sorted(params.items())
    if isinstance(params, torch.Tensor) or not isinstance(params, Iterable):
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


def _broadcast_tensors(named: Iterable[tuple[str, torch.Tensor]], root_rank: int) -> None:
    begun = []
    for name, tensor in named:
        tensor = tensor.detach()
        # The engine takes dense rows only; others (channels_last, a transposed view) travel as a copy.
        dense = tensor if tensor.is_contiguous() else tensor.contiguous()
        begun.append((collectives.broadcast_async_(dense, root_rank, name), tensor, dense))
    for handle, tensor, dense in begun:
        collectives.synchronize(handle)
        if dense is not tensor:
            tensor.copy_(dense)


def _broadcast_others(params: MutableMapping[str, Any], root_rank: int) -> None:
    others = {name: value for name, value in params.items() if not isinstance(value, torch.Tensor)}
    # Whether there are any must be the root's word: a rank that alone has some would wait for ever.
    params.update(broadcast_object(others, root_rank, "broadcast_parameters.others"))


class _Place(NamedTuple):
    """Where a tensor was taken out of a nested structure."""

    number: int


def _take_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Return `value` with its tensors moved to `tensors` and a `_Place` where each was."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return _Place(len(tensors) - 1)
    return _map(value, lambda item: _take_tensors(item, tensors))


def _put_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Undo `_take_tensors`."""
    if isinstance(value, _Place):
        return tensors[value.number]
    return _map(value, lambda item: _put_tensors(item, tensors))


def _map(value: Any, function: Any) -> Any:
    if type(value) is dict:
        return {key: function(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(function(item) for item in value)
    return value


def _load_in_place(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a state dict, and keep the group and state objects: schedulers and wrapped optimizers share them."""
    groups, states = optimizer.param_groups, optimizer.state
    optimizer.load_state_dict(state)
    for group, loaded in zip(groups, optimizer.param_groups, strict=True):
        if group is not loaded:
            group.clear()
            group.update(loaded)
    optimizer.param_groups = groups
    if states is not optimizer.state:
        states.clear()
        states.update(optimizer.state)
        optimizer.state = states

"""Broadcasting an optimizer's state.

The root's state is separated into a skeleton and tensors (see `farandole.torch.skeleton`), and reassembled on the
others. So every value arrives unchanged.

An optimizer has no state before its first step. For PyTorch's own optimizers, a neutral state is *materialised* on the
root: by a step of another optimizer of the same class, on parameters of zeros, after which the state is reset to its
initial values. Training then gives the same bits as without a state. Other optimizers are left without state, because
their initial values are not known.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from farandole.errors import InvalidRequestError
from farandole.torch.naming import check_optimizer
from farandole.torch.objects import broadcast_object
from farandole.torch.parameters import all_if_different, broadcast_tensors
from farandole.torch.skeleton import take_apart
from farandole.worker.core.basics import current
from farandole.worker.core.group import ProcessSet, global_process_set


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Broadcast the root's optimizer state and options, such as the learning rate, in place.

    All values arrive unchanged, at any depth. If one of PyTorch's optimizers has no state yet, it gets a neutral one,
    and parameters without a gradient get one of zeros.

    Args:
        optimizer: a plain or distributed optimizer, of the same class and with parameters of the same shapes on all
            ranks.
        root_rank: the rank, in the world, whose state is sent.
        model: the model of the parameters, which shows which of them have sparse gradients.
        process_set: the ranks that take part; no-op on others.

    Raises:
        ValueError: the argument is not an optimizer, or the optimizers differ in class, groups or parameters. Then it
            is raised on all ranks, before anything has changed.
        HorovodInternalError: a worker was lost.
    """
    check_optimizer(optimizer, "broadcast_optimizer_state")
    session = current()
    session.group_of(process_set, "broadcast_optimizer_state")
    if not process_set.included() or session.only_arrived:
        return
    _check_same_optimizers(optimizer, process_set)
    is_root = session.world.rank == root_rank
    if not any(optimizer.state.values()):
        _give_gradients(optimizer, model)
        if is_root:
            _materialise(optimizer)
    skeleton, tensors = take_apart(optimizer.state_dict()) if is_root else (None, [])
    skeleton = broadcast_object(skeleton, root_rank, "broadcast_optimizer_state", process_set)
    assert skeleton is not None
    if not is_root:
        tensors = [place.on_own_device(torch.empty(place.shape, dtype=place.dtype)) for place in skeleton.places]
    named = [(f"optimizer_state.{index}", tensor) for index, tensor in enumerate(tensors)]
    broadcast_tensors(named, root_rank, process_set)
    if not is_root:
        load_in_place(optimizer, skeleton.with_tensors(tensors))


def _check_same_optimizers(optimizer: torch.optim.Optimizer, process_set: ProcessSet) -> None:
    everyone = all_if_different(list(_described(optimizer)), "broadcast_optimizer_state", process_set)
    for rank, theirs in zip(process_set.ranks, everyone, strict=False):
        # Numbers come before what they count, so the first difference is at a place that both have.
        for first, other in zip(everyone[0], theirs, strict=False):
            if first != other:
                raise InvalidRequestError(
                    f"broadcast_optimizer_state() got different optimizers: rank {process_set.ranks[0]} has {first}, "
                    f"and rank {rank} has {other}. Make the same optimizer, for the same model, on all ranks."
                )


def _described(optimizer: torch.optim.Optimizer) -> Iterator[str]:
    """Yield what must be the same on all ranks."""
    kind = next(kind for kind in type(optimizer).__mro__ if not _is_ours(kind))
    yield f"{kind.__name__} with {_counted(len(optimizer.param_groups), 'group')}"
    for number, group in enumerate(optimizer.param_groups):
        yield f"{_counted(len(group['params']), 'parameter')} in group {number}"
        for place, parameter in enumerate(group["params"]):
            yield f"shape {list(parameter.shape)} of parameter {place} in group {number}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


# --- the first state -------------------------------------------------------------------------------------------


def _give_gradients(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> None:
    """Set gradients of zeros for trained parameters without a gradient, sparse if theirs will be sparse."""
    modules = [] if model is None else model.modules()
    sparse = {module.weight for module in modules if getattr(module, "sparse", False) and hasattr(module, "weight")}
    all_sparse = isinstance(optimizer, torch.optim.SparseAdam)
    for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
        if parameter.requires_grad and parameter.grad is None:
            zeros = torch.zeros_like(parameter, requires_grad=False)
            # Of an empty tensor only the layout is kept: nothing is stored.
            parameter.grad = zeros.to_sparse(1) if all_sparse or parameter in sparse else zeros


def _materialise(optimizer: torch.optim.Optimizer) -> None:
    kind = _kind_of_torch(optimizer)
    if kind is None:
        return
    twins = {parameter: _twin(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    groups = [
        _options(group) | {"params": [twins[parameter] for parameter in group["params"]]}
        for group in optimizer.param_groups
    ]
    fresh = kind(groups)
    fresh.step(lambda: torch.zeros(()))
    rates = {parameter: group["lr"] for group in groups for parameter in group["params"]}
    dampened = {parameter for group in groups if group.get("dampening") for parameter in group["params"]}
    for parameter, twin in twins.items():
        if fresh.state.get(twin):
            state = {name: _at_start(name, value, rates[twin]) for name, value in fresh.state[twin].items()}
            # The first gradient becomes the momentum undampened; that happens only where there is none.
            optimizer.state[parameter] = state | ({"momentum_buffer": None} if twin in dampened else {})


def _kind_of_torch(optimizer: torch.optim.Optimizer) -> Any:
    """Return the class of PyTorch whose `step` this optimizer uses, or None."""
    kinds = [kind for kind in type(optimizer).__mro__ if not _is_ours(kind)]
    step = next(vars(kind)["step"] for kind in kinds if "step" in vars(kind))
    kind = next(kind for kind in kinds if kind.__module__.startswith("torch.optim"))
    is_torchs = inspect.unwrap(step).__module__.startswith("torch.optim")
    return kind if is_torchs and kind is not torch.optim.Optimizer else None


def _is_ours(kind: type) -> bool:
    """Return whether a class is farandole's, or a direct subclass of one of farandole's."""
    return any(each.__module__.startswith("farandole.") for each in (kind, *kind.__bases__))


def _twin(parameter: torch.Tensor) -> torch.nn.Parameter:
    twin = torch.nn.Parameter(torch.zeros_like(parameter), requires_grad=parameter.requires_grad)
    if parameter.requires_grad and parameter.grad is not None:
        twin.grad = torch.zeros_like(parameter.grad)
    return twin


def _options(group: dict[str, Any]) -> dict[str, Any]:
    """Return a group's options, without those that depend on its parameters."""
    options = {name: value for name, value in group.items() if name not in ("params", "param_names", "differentiable")}
    if all(parameter.device.type == "cpu" for parameter in group["params"]):
        options.pop("capturable", None)
    return options


def _at_start(name: str, value: Any, rate: Any) -> Any:
    """Return the initial value of an entry of the state."""
    if name == "step_size":
        return value
    start = {"mu_product": 1, "mu": 1, "eta": rate}.get(name, 0)
    if isinstance(value, torch.Tensor):
        return value.detach().fill_(start) if value.layout == torch.strided else value
    return type(value)(start) if isinstance(value, (int, float)) else value


# --- loading ---------------------------------------------------------------------------------------------------


def load_in_place(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a state dict unchanged, and keep the group and state objects, which schedulers and wrapped optimizers share.

    PyTorch's own loader casts the tensors of a parameter's state to the parameter's type, and rebuilds containers with
    other types. Everything else that it does, including hooks and the classes' defaults, is also done here. Tensors on
    another device of the same type are moved to that of their parameter.
    """
    state = _beside_parameters(optimizer, state)
    # Of the hooks that change the loaded state, this one is the last.
    hook = optimizer.register_load_state_dict_pre_hook(_hide_states)
    vars(optimizer)["__setstate__"] = partial(_set_revealed, optimizer)
    try:
        with same_containers(optimizer):
            optimizer.load_state_dict(state)
    finally:
        del vars(optimizer)["__setstate__"]
        hook.remove()


def refuse_copy(optimizer: torch.optim.Optimizer, _protocol: object) -> Any:
    """Raise an error in the place of `__reduce_ex__`, which `copy` and `pickle` call.

    Raises:
        InvalidRequestError: always. A copy would have neither the hooks of its parameters nor the class, which is made
            when the optimizer is wrapped.
    """
    raise InvalidRequestError(
        "a DistributedOptimizer cannot be copied or pickled, because it belongs to the parameters whose gradients it "
        "reduces. Copy or save its state_dict(). For a copy of the model, wrap another optimizer of the copy's "
        "parameters, and load the state into it by load_state_dict()."
    )


@contextmanager
def same_containers(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Keep the group and state objects of an optimizer that loads a state dict: PyTorch's loader replaces them.

    Schedulers and wrapped optimizers share them. With a group of its own, a scheduler has no effect any more.
    """
    groups, states = optimizer.param_groups, optimizer.state
    yield
    if optimizer.param_groups is not groups:
        for group, loaded in zip(groups, optimizer.param_groups, strict=True):
            if group is not loaded:
                group.clear()
                group.update(loaded)
        optimizer.param_groups = groups
    if optimizer.state is not states:
        states.clear()
        states.update(optimizer.state)
        optimizer.state = states


def _beside_parameters(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    numbers = [number for saved in state["param_groups"] for number in saved["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    devices = {number: parameter.device for number, parameter in zip(numbers, parameters, strict=False)}

    def moved(value: Any, device: torch.device) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(device) if value.device.type == device.type else value
        return {name: moved(each, device) for name, each in value.items()} if type(value) is dict else value

    states = {
        key: moved(value, devices[key]) if key in devices and devices[key].type != "cpu" else value
        for key, value in state["state"].items()
    }
    return {**state, "state": states}


class _Hidden:
    """The state of one parameter, in a form that the loader does not change: neither a tensor nor iterable."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _hide_states(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    return {**state, "state": {key: _Hidden(value) for key, value in state["state"].items()}}


def _set_revealed(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    for key, value in state["state"].items():
        if isinstance(value, _Hidden):
            state["state"][key] = value.value
    type(optimizer).__setstate__(optimizer, state)

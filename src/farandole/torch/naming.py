"""Names of an optimizer's parameters, by which the ranks' gradients match."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

from farandole.errors import InvalidRequestError

Named = tuple[str, torch.nn.Parameter]


def can_be_trained(parameter: torch.Tensor) -> bool:
    """Return whether a parameter can ever have a gradient."""
    return parameter.is_floating_point() or parameter.is_complex()


def check_optimizer(given: Any, function: str) -> None:
    """Raise ValueError if the argument of a function that takes an optimizer is something else, such as a model."""
    if not hasattr(given, "param_groups") or not hasattr(given, "state"):
        raise InvalidRequestError(
            f"{function} takes an optimizer, but got {type(given).__name__}. Pass one such as "
            "torch.optim.SGD(model.parameters(), lr=0.1)."
        )


def parameter_names(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[Named] | None
) -> dict[torch.nn.Parameter, str]:
    """Return the name of each of the optimizer's parameters.

    Args:
        optimizer: the optimizer whose parameters are named.
        named_parameters: names for all of them; None: names from their places in the optimizer's groups.

    Raises:
        ValueError: a name is missing, occurs twice, or is not a string.
    """
    if named_parameters is None:
        return {
            parameter: _by_place(group_index, index)
            for group_index, group in enumerate(optimizer.param_groups)
            for index, parameter in enumerate(group["params"])
        }
    # A module has parameters, but is not a sequence of them.
    named = list(named_parameters) if isinstance(named_parameters, Iterable) else [()]
    if not all(isinstance(entry, tuple) and len(entry) == 2 for entry in named):
        raise InvalidRequestError(
            "named_parameters should be a sequence of tuples (name, parameter), such as model.named_parameters()."
        )
    repeated = sorted(name for name, count in Counter(name for name, _ in named).items() if count > 1)
    if repeated:
        raise InvalidRequestError(
            f"Parameter names in named_parameters must be unique. Found more than once: {', '.join(repeated)}. "
            "Prefix the names of each model."
        )
    names = {parameter: name for name, parameter in named}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    unnamed = sum(parameter not in names for parameter in parameters)
    if unnamed:
        raise InvalidRequestError(
            f"named_parameters was specified, but one or more model parameters were not named: {unnamed} of "
            f"{len(parameters)} that the optimizer has. Pass the names of all, or none."
        )
    return names


def name_last_group(optimizer: torch.optim.Optimizer, names: dict[torch.nn.Parameter, str]) -> list[Named]:
    """Add the parameters of the optimizer's last group to `names`, and return those that can be trained."""
    number = len(optimizer.param_groups) - 1
    parameters = optimizer.param_groups[number]["params"]
    for index, parameter in enumerate(parameters):
        names.setdefault(parameter, _by_place(number, index))
    return [(names[parameter], parameter) for parameter in parameters if can_be_trained(parameter)]


def _by_place(group: int, index: int) -> str:
    return f"allreduce.noname.{group}.{index}"

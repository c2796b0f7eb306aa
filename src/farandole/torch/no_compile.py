"""Keeping PyTorch's compiler out of what it cannot compile: collectives have effects that no graph shows."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])


def no_compile(function: Function) -> Function:
    """Return the function, which a compiled caller leaves its graph for.

    As `torch.compiler.disable`, which loads the compiler, some seconds' work, when it decorates. This one waits until
    something else has loaded it.
    """
    disabled: Callable[..., Any] | None = None

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        nonlocal disabled
        if "torch._dynamo" not in sys.modules:
            return function(*arguments, **named)
        if disabled is None:
            disabled = torch.compiler.disable(function)
        return disabled(*arguments, **named)

    return call  # type: ignore[return-value]

"""Excluding functions from PyTorch's compiler that it cannot compile: collectives have effects that a graph does not
show.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])


def no_compile(function: Function) -> Function:
    """Return the function in a form that causes a graph break in a compiled caller.

    It is like `torch.compiler.disable`, which takes seconds because it imports the compiler at once. This one waits
    until something else has imported it.
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

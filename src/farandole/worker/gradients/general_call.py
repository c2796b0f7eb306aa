"""The call for gradients that have no view of the arena, which front ends make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from farandole.worker.core.handle import Call


class GeneralCall(NamedTuple):
    """A call that a front end has made for gradients without a view of the arena."""

    call: Call
    store: Callable[[Any], None]
    """Stores the result of the call in the gradients."""

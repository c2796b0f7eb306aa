"""The call of gradients that have no view of the arena, as front ends make it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from farandole.worker.core.handle import Call


class GeneralCall(NamedTuple):
    """A call that a front end has made for gradients without a view of the arena."""

    call: Call
    store: Callable[[Any], None]
    """Puts the result of the call into the gradients."""

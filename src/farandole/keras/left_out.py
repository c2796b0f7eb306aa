"""Phases in which gradients are not reduced, because the resulting state is replaced by that of other workers.

These are: before a new worker of a job begins to train, and in reset callbacks, in which Horovod's scripts take a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from farandole.worker.core.basics import current

_resets = 0


def is_on() -> bool:
    """Return whether gradients are not reduced at present."""
    return _resets > 0 or current().only_arrived


@contextmanager
def during_reset() -> Iterator[None]:
    """Return a context in which gradients are not reduced."""
    global _resets
    _resets += 1
    try:
        yield
    finally:
        _resets -= 1

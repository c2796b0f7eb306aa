"""When gradients are each worker's own, as what comes of them is replaced by the state of others.

That is so before the training of a worker begins that is new in a job, and in reset callbacks, where Horovod's scripts
train for a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from farandole.worker.core.basics import current

_resets = 0


def is_on() -> bool:
    """Return whether gradients are each worker's own at the moment."""
    return _resets > 0 or current().only_arrived


@contextmanager
def during_reset() -> Iterator[None]:
    """Let gradients be each worker's own for a while."""
    global _resets
    _resets += 1
    try:
        yield
    finally:
        _resets -= 1

"""Steps whose optimizers were dropped before they were finished.

Their requests are in flight under the names of parameters, so the next optimizer with parameters of the same names
finishes them first. All ranks must do so at the same place. But an optimizer in a cycle of references is dropped when
garbage is collected, which each rank does at another time, so the next optimizer collects it before it looks.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Set
from typing import Protocol


class OpenStep(Protocol):
    """An object that reduces the gradients of an optimizer."""

    @property
    def names(self) -> Set[str]:
        """Return the names of the gradients."""

    @property
    def pending(self) -> bool:
        """Return whether a step has begun."""

    def reset(self) -> None:
        """Finish the step, without using it."""


class DroppedSteps:
    """The dropped steps of a session."""

    def __init__(self) -> None:
        self._existing: weakref.WeakSet[OpenStep] = weakref.WeakSet()
        self._in_use: weakref.WeakSet[OpenStep] = weakref.WeakSet()
        """Those that have outlived a collection in the middle of a step: it is done once for each."""
        self._dropped: list[OpenStep] = []

    def watch(self, reducer: OpenStep) -> None:
        """Record a reducer, which calls `drop` when it is dropped in the middle of a step."""
        self._existing.add(reducer)

    def drop(self, reducer: OpenStep) -> None:
        """Keep a reducer until its step is finished: nothing may wait for that where an object is deleted."""
        self._dropped.append(reducer)

    def __bool__(self) -> bool:
        """Return whether there may be something to finish before a step of one of the reducers."""
        return bool(self._dropped) or len(self._existing) > 1

    def finish(self, following: OpenStep | None = None) -> None:
        """Finish the dropped steps that have gradients of the same names as a step that follows; None: all.

        The step that follows must not have begun.
        """
        if self._some_may_be_garbage(following):
            gc.collect()
        for dropped in [each for each in self._dropped if _meet(each, following)]:
            self._dropped.remove(dropped)
            dropped.reset()

    def _some_may_be_garbage(self, following: OpenStep | None) -> bool:
        doubtful = [each for each in list(self._existing - self._in_use) if each.pending and _meet(each, following)]
        self._in_use.update(doubtful)
        return bool(doubtful)

    def clear(self) -> None:
        """Forget all steps, because the session ends."""
        self._dropped.clear()


def _meet(reducer: OpenStep, following: OpenStep | None) -> bool:
    return following is None or not reducer.names.isdisjoint(following.names)

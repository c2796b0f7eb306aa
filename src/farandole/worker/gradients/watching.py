"""The hooks by which a framework notifies the reducer of gradients."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

from farandole.worker.gradients.entry import Entry
from farandole.worker.gradients.gradient_front_end import GradientFrontEnd, GradientReceiver


class Watching:
    """Watches the entries of a reducer from when they are first trained, as long as the reducer exists.

    Attributes:
        has_ended: whether the hooks were removed, because another reducer watches the same gradients.
    """

    def __init__(self, front_end: GradientFrontEnd, reducer: GradientReceiver) -> None:
        """Create the object, without entries."""
        self._front_end = front_end
        self._reducer = weakref.ref(reducer)
        self.has_ended = False
        self._unwatched: list[Entry] = []
        self._ends: list[Callable[[], None]] = []
        # The framework holds the hooks, and the hooks hold the entries. Unless the hooks are removed when the reducer
        # ends, the views would outlive the optimizer.
        weakref.finalize(reducer, _call_each, self._ends).atexit = False

    def add(self, entries: Sequence[Entry]) -> None:
        """Watch more entries. Frozen ones are watched once they are trained (see `watch_trained`)."""
        self._unwatched += entries
        self.watch_trained()

    def watch_trained(self) -> None:
        """Watch the entries that were frozen at the last check and are trained now."""
        trained = [entry for entry in self._unwatched if entry.trained]
        self._ends += [self._front_end.watch(entry, self._reducer) for entry in trained]
        self._unwatched = [entry for entry in self._unwatched if not entry.trained]

    def end(self) -> None:
        """Remove all hooks, for good."""
        self.has_ended = True
        _call_each(self._ends)


def _call_each(functions: Sequence[Callable[[], None]]) -> None:
    for function in functions:
        function()

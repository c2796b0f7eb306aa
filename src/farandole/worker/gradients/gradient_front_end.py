"""The operations that the reducer needs from a framework, besides those of its entries."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from farandole.worker.core.session import Session
from farandole.worker.gradients.entry import Bundle, Entry
from farandole.worker.gradients.general_call import GeneralCall


class GradientReceiver(Protocol):
    """The reducer, as a front end sees it."""

    def on_gradient(self, entry: Entry) -> None:
        """Record that a backward pass has finished a gradient."""

    def hand_over(self) -> None:
        """End, because another reducer watches gradients that this one has watched."""


class GradientFrontEnd(Protocol):
    """The adapter of one framework. The reducer calls it in the thread that calls the reducer."""

    def watch(self, entry: Entry, reducer: weakref.ref[GradientReceiver]) -> Callable[[], None]:
        """Register a hook that calls `reducer().on_gradient(entry)` when a backward pass has finished a gradient.

        The gradients of a step come in any order and from any thread. The framework may keep the hook longer than the
        optimizer exists, so it must not have a reference to the reducer itself. A framework in which several optimizers
        may have the same gradients removes the hook of an earlier reducer, and calls `hand_over()` of that reducer.

        Returns:
            A function that removes the hook.
        """

    def at_end_of_backward(self, callback: Callable[[], None]) -> bool:
        """Register a callback for the end of the backward pass that is running in this thread.

        Returns:
            Whether it will be called. False if no backward pass is running; then the reducer does not wait.
        """

    def dense_call(self, session: Session, entries: Sequence[Entry]) -> GeneralCall:
        """Return a call that reduces gradients together, wherever they are; zeros for those that are absent."""

    def sparse_call(self, session: Session, entry: Entry) -> GeneralCall:
        """Return a call that gathers and adds the stored elements of all ranks' sparse gradients.

        Raises:
            InvalidRequestError: there is no such reduction of sparse gradients.
        """

    @property
    def uses_views(self) -> bool:
        """Return whether gradients may be sent through the arena, because they are not compressed."""

    def forget_residuals(self) -> None:
        """Drop the residuals of compression: a broken world left them incomplete, or they belong to another rank."""

    def present(self, bundles: Sequence[Bundle]) -> list[tuple[Entry, Any]]:
        """Return the present gradients in the framework's own form, each with its entry."""

    def versions(self, gradients: Sequence[tuple[Entry, Any]]) -> list[int]:
        """Return version numbers, one of which changes when the framework writes to a gradient."""

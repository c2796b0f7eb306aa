"""The reducer's record of each gradient.

Each gradient has an *entry*; the entries that are submitted together form a *bundle*: one entry, unless the user chose
groups, or it is a device bucket.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any

from farandole.worker.core.dtype import DType
from farandole.worker.core.submission import Submission
from farandole.worker.gradients.buckets import Layout
from farandole.worker.gradients.flat_memory import FlatMemory
from farandole.worker.gradients.views import View


class Entry(ABC):
    """One gradient and its path. A front end derives a class for the gradients of its framework.

    At first, a gradient is sent from its framework's memory, by calls that the front end makes (see
    `GradientFrontEnd.dense_call`). When the reducer has given the entry a *view* of the arena, `put` copies the
    gradient there, and no such call is needed.

    Attributes:
        name: the name by which the gradients of all ranks are matched.
        bundle: the gradients that it is submitted with.
        missing_passes: the number of backward passes that the step still needs.
        view: the memory, in the arena or in a device bucket, from which this rank's gradient is sent and in which the
            reduced one is stored; None on the general way.
        own_view: separate memory from which this rank's own gradient is sent, so that it outlives its reduction.
        kept: on the general way, a copy of this rank's own gradient that outlives its reduction; else None.
        absent: whether zeros stand for a gradient that this rank does not have in this step.
    """

    __slots__ = ("absent", "bundle", "kept", "missing_passes", "name", "own_view", "view")

    bundle: Bundle

    def __init__(self, name: str) -> None:
        self.name = name
        self.missing_passes = 0
        self.view: View | None = None
        self.own_view: View | None = None
        self.kept: Any = None
        self.absent = False

    # --- what the gradient is --------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def trained(self) -> bool:
        """Return whether the parameter is trained; a frozen one takes no part in a step."""

    @property
    @abstractmethod
    def travels_sparse(self) -> bool:
        """Return whether the gradient of this step is gathered rather than reduced. All ranks must return the same."""

    @property
    @abstractmethod
    def dtype(self) -> DType | None:
        """Return the element type; None if the engine has no such type."""

    @abstractmethod
    def layout(self) -> Layout:
        """Return the layout of a view of the gradient.

        Raises:
            InvalidRequestError: the engine has no such element type.
        """

    @property
    def device(self) -> Hashable | None:
        """Return the device in whose memory the gradient may share a bucket with others, or None."""
        return None

    # --- on the way through the arena ------------------------------------------------------------------------------

    @abstractmethod
    def wants_view(self) -> bool:
        """Return whether the gradient should have a view, judged by its first steps.

        The view is one of a bucket on the entry's `device`, or of the arena if there is no such device.
        """

    @abstractmethod
    def attach(self) -> None:
        """Move the gradient into `view`, which the reducer has set, perhaps together with `own_view`."""

    @abstractmethod
    def detach(self) -> None:
        """Drop the views, because they belong to a session that has ended."""

    @abstractmethod
    def put(self, share: float) -> bool:
        """Copy the gradient, multiplied by `share`, to the memory that it is sent from; zeros if there is none.

        After that, the framework's gradient is the view. With a share of 0, it may have any value, including NaN.

        Returns:
            Whether this was possible; otherwise the gradient takes the general way in this step.
        """

    def is_in_use(self) -> bool:
        """Return whether the user still has an earlier gradient in the view, which must not be overwritten."""
        return False

    @abstractmethod
    def scale(self, factor: float) -> None:
        """Multiply the gradient that `put` has copied."""

    @abstractmethod
    def take_back(self) -> None:
        """Make the reduced gradient in the view the gradient of the framework."""

    @abstractmethod
    def lies_in_view(self, gradient: Any) -> bool:
        """Return whether a gradient (see `GradientFrontEnd.present`) is the view."""

    # --- on the general way ----------------------------------------------------------------------------------------

    @abstractmethod
    def keep(self) -> None:
        """Copy this rank's own gradient to `kept`, if there is one."""

    @abstractmethod
    def restore(self) -> None:
        """Set the gradient to a copy of `kept`."""

    @abstractmethod
    def weight(self, share: float) -> None:
        """Multiply the gradient, if there is one. With a share of 0, it may have any value, including NaN."""

    # --- for ranks that lack a reduced gradient --------------------------------------------------------------------

    @abstractmethod
    def state_of(self, gradient: Any) -> Any:
        """Return a reduced gradient in a form that the front end can send to other ranks."""

    @abstractmethod
    def adopt(self, state: Any) -> None:
        """Set the gradient from the result of `state_of` on another rank."""

    def let_go(self) -> None:
        """Record that `LastReduced` no longer keeps the last reduced gradient."""
        return


class Bundle:
    """The entries that are submitted together.

    Attributes:
        missing: number of entries that still need backward passes.
        launched: whether its gradients are in flight, or have arrived.
        generation: the generation of the world in which they were launched.
        share: the factor by which this rank's gradients were multiplied there.
        broken: whether its gradients were not reduced, because that world broke.
        kept: whether this rank's own gradients of this step are kept.
        submission: the requests, made once and used in every step, if all entries have a view of the arena.
        nbytes: the size of all views together, in bytes.
        flat: the memory of the bundle, if it is a device bucket; else None.
    """

    __slots__ = (
        "broken",
        "entries",
        "flat",
        "generation",
        "kept",
        "launched",
        "missing",
        "nbytes",
        "share",
        "submission",
    )

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = list(entries)
        for entry in self.entries:
            entry.bundle = self
        self.missing = 0
        self.launched = False
        self.generation = 0
        self.share = 1.0
        self.broken = False
        self.kept = False
        self.submission: Submission | None = None
        self.nbytes = 0
        self.flat: FlatMemory | None = None

    def put(self, share: float, keeps: bool) -> bool:
        """Copy the gradients to the memory that they are sent from; return whether this was possible for all.

        Args:
            share: the factor by which this rank's gradients are multiplied.
            keeps: whether they are copied to memory other than the views, so that they outlive their reduction.
        """
        if self.kept:  # The entries were launched before, in a world that has ended meanwhile.
            return all(entry.kept is None for entry in self.entries)
        if any(entry.is_in_use() for entry in self.entries):
            return False
        # All entries of a bundle are copied, or none: those on the general way are multiplied there, and a gradient
        # that is kept beside its view cannot take it.
        if keeps or len(self.entries) > 1:
            if not all(entry.trained and not entry.travels_sparse for entry in self.entries):
                return False
        self.share = share
        if not all(entry.put(share) for entry in self.entries):
            return False
        self.kept = keeps
        return True

    def weight(self, share: float) -> None:
        """Weight the gradients, after `put`, for the world in which they will be reduced."""
        if share != self.share and self.share:
            self._scale(share / self.share)
        self.share = share

    def _scale(self, factor: float) -> None:
        for entry in self.entries:
            entry.scale(factor)

    def has_begun(self) -> bool:
        """Return whether the bundle is launched, or has nothing to launch."""
        return self.launched or not any(entry.trained for entry in self.entries)

    def absent_names(self) -> list[str]:
        """Return the names of gradients that this rank does not have in this step."""
        return [entry.name for entry in self.entries if entry.absent]

    def reset(self, passes: int) -> None:
        """Begin a step, for which each gradient needs this number of backward passes."""
        self.launched = self.broken = self.kept = False
        self.missing = len(self.entries)
        for entry in self.entries:
            entry.missing_passes = passes
            entry.absent = False
            entry.kept = None

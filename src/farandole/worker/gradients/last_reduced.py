"""The reduced gradients of the last step that counted, for ranks that lack them when the world breaks.

They are not copied: a gradient in its view stays there until the next step's is reduced, unless it is overwritten.
Frameworks count the writes that they know of. Other writes are detected once, in the first step in which gradients have
views.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from farandole.worker.gradients.entry import Bundle, Entry
from farandole.worker.gradients.flat_memory import FlatMemory
from farandole.worker.gradients.gradient_front_end import GradientFrontEnd


class LastReduced:
    """Reduced gradients, in their own memory: an implementation of `farandole.worker.core.retry.Gradients`."""

    def __init__(self, bundles: Sequence[Bundle], front_end: GradientFrontEnd) -> None:
        """Create the object, without gradients yet."""
        self._bundles = bundles
        self._front_end = front_end
        self._kept: list[tuple[Entry, Any]] = []
        self._versions: list[int] = []
        self._checksums: list[int] | None = None
        self._buckets: list[FlatMemory] = []
        """The buckets on devices that the checksums belong to."""

    def keep(self, *, examine: bool = False) -> None:
        """Keep the gradients of a step that counts.

        Args:
            examine: whether `are_intact` compares each byte of the gradients in views.
        """
        # This runs in every step, so that it must be short.
        self._kept = self._front_end.present(self._bundles)
        self._versions = self._front_end.versions(self._kept)
        if examine:
            self._buckets = [bundle.flat for bundle in self._bundles if bundle.flat is not None]
            self._checksums = self._sums()
        else:
            self._buckets, self._checksums = [], None

    def forget(self) -> None:
        """Drop the gradients."""
        for entry, _ in self._kept:
            entry.let_go()
        self._kept, self._versions, self._buckets, self._checksums = [], [], [], None

    def are_intact(self) -> bool:
        """Return whether the gradients are unchanged."""
        if self._versions != self._front_end.versions(self._kept):
            return False
        return self._checksums is None or self._checksums == self._sums()

    def state_dict(self) -> dict[str, Any]:
        """Return the gradients by the names of their entries."""
        return {entry.name: entry.state_of(gradient) for entry, gradient in self._kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the gradients by those that another rank has kept."""
        for bundle in self._bundles:
            for entry in bundle.entries:
                if entry.name in state:
                    entry.adopt(state[entry.name])
        self.keep()

    def _sums(self) -> list[int]:
        in_host_memory = [
            zlib.crc32(entry.view.bytes())
            for entry, gradient in self._kept
            if entry.view is not None and entry.device is None and entry.lies_in_view(gradient)
        ]
        return in_host_memory + [bucket.checksum() for bucket in self._buckets]

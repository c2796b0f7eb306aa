"""Assigns views of the arena to gradients, and prepares their requests."""

from __future__ import annotations

from collections.abc import Sequence

from farandole.worker.core.session import Session
from farandole.worker.gradients.context import Context
from farandole.worker.gradients.entry import Entry
from farandole.worker.gradients.requests import prepare
from farandole.worker.gradients.views import allocate


class ArenaViews:
    """The entries of a reducer that have no view yet."""

    def __init__(self, context: Context) -> None:
        """Create the object, without entries."""
        self._context = context
        self._without: list[Entry] = []

    def add(self, entries: Sequence[Entry]) -> None:
        """Add entries that have no view."""
        self._without += entries

    def drop(self, entries: Sequence[Entry]) -> None:
        """Drop the views of all entries: they belong to a session that has ended."""
        self._without = list(entries)
        for entry in entries:
            entry.view = entry.own_view = None
            entry.bundle.submission = None
            entry.detach()

    def give(self, session: Session) -> bool:
        """Assign views to gradients that have turned out to be dense, and prepare the requests of their bundles.

        Returns:
            Whether there were such gradients.
        """
        # Gradients on devices may have got views of buckets meanwhile, and others at the last call.
        self._without = [entry for entry in self._without if entry.view is None]
        entries = [entry for entry in self._without if entry.device is None and entry.wants_view()]
        if not entries:
            return False
        layouts = [entry.layout() for entry in entries]
        views = allocate(session.engine, layouts)
        own_views = allocate(session.engine, layouts) if self._context.keeps else [None] * len(entries)
        for entry, view, own_view in zip(entries, views, own_views, strict=True):
            entry.view, entry.own_view = view, own_view
            entry.attach()
        for bundle in {id(entry.bundle): entry.bundle for entry in entries}.values():
            prepare(bundle, self._context.options, session)
        return True

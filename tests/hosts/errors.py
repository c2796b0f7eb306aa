"""What can go wrong with the bed."""

from __future__ import annotations


class BedError(Exception):
    """A host cannot be made, or does not do what it was told; the text says why."""

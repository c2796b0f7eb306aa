"""Errors of the bed."""

from __future__ import annotations


class BedError(Exception):
    """A host cannot be created, or a command on it failed; the message has the reason."""

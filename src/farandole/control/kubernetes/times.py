"""Moments as the API writes them (RFC 3339, in UTC, whole seconds), and as numbers."""

from __future__ import annotations

from datetime import datetime, timezone


def to_text(seconds: float) -> str:
    """Write a moment as the API does."""
    return datetime.fromtimestamp(int(seconds), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def from_text(text: object) -> float | None:
    """Read a moment; None if it is none, as in input that was never checked."""
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    try:
        return moment.timestamp()
    except (OverflowError, ValueError):
        return None

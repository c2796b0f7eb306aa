"""Converts times between the API's form (RFC 3339, in UTC, whole seconds) and seconds since 1970."""

from __future__ import annotations

from datetime import datetime, timezone


def to_text(seconds: float) -> str:
    """Format a time for the API."""
    return datetime.fromtimestamp(int(seconds), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def from_text(text: object) -> float | None:
    """Parse a time; return None if it is not valid, as in unchecked input."""
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

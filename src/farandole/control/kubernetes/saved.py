"""Parses the data that an operator has stored in a job's status. The status may have any content."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farandole.control.kubernetes.model import Object


def history_of(status: Object) -> Mapping[str, Any]:
    """Return the history in a status; empty if it is not readable."""
    found = status.get("history")
    return found if isinstance(found, Mapping) else {}


def count(value: object) -> int:
    """Return a value as a count; 0 if it is not valid."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else 0


def uids(value: object) -> frozenset[str]:
    """Return the UIDs in a list; empty if the value is not a list."""
    return frozenset(uid for uid in value if isinstance(uid, str)) if isinstance(value, list) else frozenset()

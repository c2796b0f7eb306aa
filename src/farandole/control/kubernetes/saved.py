"""Reading what an operator has saved in a job's status for its next turn. The status may be anybody's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from farandole.control.kubernetes.model import Object


def history_of(status: Object) -> Mapping[str, Any]:
    """Return what a status says of the job's past; empty if that is not readable."""
    found = status.get("history")
    return found if isinstance(found, Mapping) else {}


def count(value: object) -> int:
    """Return a number of things; 0 for what is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else 0


def uids(value: object) -> frozenset[str]:
    """Return the UIDs in a list; none for what is no list."""
    return frozenset(uid for uid in value if isinstance(uid, str)) if isinstance(value, list) else frozenset()

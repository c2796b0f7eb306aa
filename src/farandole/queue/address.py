"""Where a queue keeps its state, and so where it is reached."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "FARANDOLE_QUEUE"
"""Names the state directory of the queue that is meant."""
OF_ALL = Path("/var/lib/farandole/queue")
"""Of a queue that root runs for all users of a machine."""


def of_user(environment: Mapping[str, str]) -> Path:
    """Return the state directory of a queue that a user runs."""
    state = environment.get("XDG_STATE_HOME", "")
    return Path(state if os.path.isabs(state) else os.path.expanduser("~/.local/state")) / "farandole" / "queue"


def default_state(environment: Mapping[str, str]) -> Path:
    """Return the state directory of a queue that this process starts."""
    if named := environment.get(VARIABLE):
        return Path(named)
    return OF_ALL if os.geteuid() == 0 else of_user(environment)


def find(environment: Mapping[str, str]) -> Path | None:
    """Return the state directory of the queue that is there: the named one, this user's, or that of all users."""
    if named := environment.get(VARIABLE):
        return Path(named)
    return next((place for place in (of_user(environment), OF_ALL) if socket_of(place).exists()), None)


def socket_of(state: Path) -> Path:
    return state / "socket"


def is_there(environment: Mapping[str, str]) -> bool:
    """Return whether there is a queue that commands mean by default."""
    try:
        return find(environment) is not None
    except OSError:
        return False

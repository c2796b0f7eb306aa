"""The error of an agent that is of no more use.

AgentLost (LaunchError)     the agent, or the way to it, is gone; the text says how that was noticed
"""

from __future__ import annotations

import time

from farandole.errors import LaunchError


class AgentLost(LaunchError):
    """The agent, or the way to it, is gone.

    Attributes:
        at: since when, on the monotonic clock.
        silent: whether nothing more was heard, as of a host that is cut off; otherwise the connection ended.
    """

    def __init__(self, why: str, silent_since: float | None = None) -> None:
        super().__init__(why)
        self.at = time.monotonic() if silent_since is None else silent_since
        self.silent = silent_since is not None

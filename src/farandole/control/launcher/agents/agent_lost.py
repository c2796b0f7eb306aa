"""The error about an agent that can no longer be used.

AgentLost (LaunchError)     the agent, or the link to it, is gone; the text says how that was noticed
"""

from __future__ import annotations

import time

from farandole.errors import LaunchError


class AgentLost(LaunchError):
    """The agent, or the link to it, is gone.

    Attributes:
        at: when it was lost, on the monotonic clock.
        silent: whether it fell silent, like a host that is cut off; otherwise the connection ended.
    """

    def __init__(self, why: str, silent_since: float | None = None) -> None:
        super().__init__(why)
        self.at = time.monotonic() if silent_since is None else silent_since
        self.silent = silent_since is not None

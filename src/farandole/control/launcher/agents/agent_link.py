"""The link to an agent: a process here (`agent_process`), a process that the agent of another host has started
(`branches`), or a connection that its host has dialed (`reception`).
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from farandole.control.launcher.agents.agent_lost import AgentLost


class AgentLink(Protocol):
    """The link to one agent.

    Attributes:
        input: the stream of messages to the agent.
        output: the stream of messages from it.
    """

    input: asyncio.StreamWriter
    output: asyncio.StreamReader

    def is_ready(self) -> None:
        """Record that the agent is ready: earlier output cannot explain its end."""

    def leads_to(self, pid: int) -> None:
        """Record the process id of an agent on this machine that was taken over."""

    def said(self) -> str:
        """Return the latest output, other than messages, since the agent was ready."""

    def known_open(self) -> float:
        """Return when the way to the agent was last known to be open, on the monotonic clock.

        Later silence is no sign that this agent is lost: another one on the way to it may be.
        """

    def loss(self) -> AgentLost | None:
        """Return the loss of another agent on the way to this one, if that has ended the link."""

    def kill(self) -> None:
        """End it at once, as far as possible from here. No-op if it has ended."""

    async def wait(self) -> int | None:
        """Wait until it has ended, and return the exit code; None: unknown."""

    def close(self) -> None:
        """Release the resources held for it. Call this after it has ended."""

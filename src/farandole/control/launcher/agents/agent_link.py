"""What leads to an agent: a process here (`agent_process`), or a connection that its host has dialed (`reception`)."""

from __future__ import annotations

import asyncio
from typing import Protocol

# How long a process may take to end whose pipe is closed, and what a connection leads to.
EXIT_SECONDS = 5.0


class AgentLink(Protocol):
    """The way to one agent.

    Attributes:
        input: what the agent hears.
        output: what it says.
    """

    input: asyncio.StreamWriter
    output: asyncio.StreamReader

    def is_ready(self) -> None:
        """Record that the agent is ready: what was said up to now says nothing about its end."""

    def leads_to(self, pid: int) -> None:
        """Record that an agent on this machine was taken over, and which process it is."""

    def said(self) -> str:
        """Return the last that was said beside the messages since the agent was ready."""

    def kill(self) -> None:
        """End it at once, as far as that can be done from here. No-op when it has ended."""

    async def wait(self) -> object:
        """Wait until it has ended."""

    async def exit_code(self) -> int | None:
        """Return how one ended that has no more to say; None when it stays, or that cannot be known."""

    def close(self) -> None:
        """Let go of what is held for it. Call it when it has ended."""

"""Links to agents through the agent of another host, which has started a process that leads there, such as ssh.

The launcher's end of `farandole.control.agent.branches`. To asyncio, a branch is a transport, so an agent behind it is
served like one that the launcher has started itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from farandole.control.agent.branch_messages import (
    BRANCH_WINDOW,
    BranchCredit,
    BranchData,
    BranchReady,
    CloseBranch,
    FromBranch,
    KillBranch,
    OpenBranch,
    ToBranch,
)
from farandole.control.launcher.agents.agent_lost import AgentLost

_CHUNK = 64 * 1024
_STREAM_LIMIT = 1 << 16

SendOrder = Callable[[ToBranch], None]


class BranchPipes(asyncio.Transport):
    """The standard input and output of a branch's process, under flow control.

    Args:
        number: the number of the branch.
        send: sends an order to the agent that has the branch.
        protocol: receives the output.
    """

    def __init__(self, number: int, send: SendOrder, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._number = number
        self._send = send
        self._protocol = protocol
        self._unsent = bytearray()
        self._ahead = 0
        """Number of sent bytes that the agent has not passed on yet."""
        self._paused = False
        self._owed = 0
        """Number of bytes that arrived while reading was paused; the agent gets credit for them later."""
        self._closing = False
        self._over = False
        protocol.connection_made(self)

    # --- from the branch -----------------------------------------------------------------------------------------

    def received(self, data: bytes) -> None:
        """Pass on output of the process."""
        if self._over:
            return
        self._owed += len(data)
        self._protocol.data_received(data)
        if not self._paused:
            self.resume_reading()

    def credited(self, count: int) -> None:
        """Record that the agent has passed on this many bytes."""
        self._ahead -= count
        if self._unsent:
            self._send_more()

    def end(self) -> None:
        """Record that nothing comes any more. No-op the second time."""
        if not self._over:
            self._over = True
            self._unsent.clear()
            self._protocol.connection_lost(None)

    # --- the interface of a transport ----------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send data to the process."""
        if not self.is_closing():
            self._unsent += data
            self._send_more()

    def close(self) -> None:
        """Close the standard input of the process once everything was sent."""
        if not self.is_closing():
            self._closing = True
            self._send_more()

    def is_closing(self) -> bool:
        """Return whether nothing more can be sent."""
        return self._closing or self._over

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that were not sent yet."""
        return len(self._unsent)

    def pause_reading(self) -> None:
        """Give no more credit: what has arrived is not read yet."""
        self._paused = True

    def resume_reading(self) -> None:
        """Give credit for everything that has arrived."""
        self._paused = False
        if self._owed and not self._over:
            self._send(BranchCredit(self._number, self._owed))
        self._owed = 0

    def _send_more(self) -> None:
        while self._unsent and self._ahead < BRANCH_WINDOW:
            data = bytes(self._unsent[:_CHUNK])
            del self._unsent[:_CHUNK]
            self._ahead += len(data)
            self._send(BranchData(self._number, data))
        if self._closing and not self._unsent:
            self._send(CloseBranch(self._number))


class Branch:
    """The link to an agent through another host's agent: an `AgentLink`.

    Args:
        number: the number of the branch.
        send: sends an order to the agent that has the branch.
        known_open: returns when that agent was last heard, on the monotonic clock.
    """

    def __init__(self, number: int, send: SendOrder, known_open: Callable[[], float]) -> None:
        self.output = asyncio.StreamReader(limit=_STREAM_LIMIT)
        protocol = asyncio.StreamReaderProtocol(self.output)
        self.pipes = BranchPipes(number, send, protocol)
        self.input = asyncio.StreamWriter(self.pipes, protocol, self.output, asyncio.get_running_loop())
        self._known_open = known_open
        self._number = number
        self._send = send
        self._over = asyncio.Event()
        self._code: int | None = None
        self._said = ""
        self._loss: AgentLost | None = None

    def end(self, code: int | None = None, said: str = "", loss: AgentLost | None = None) -> None:
        """Record that the branch has ended. No-op the second time.

        Args:
            code: the exit code of its process; None: unknown.
            said: its last lines on standard error.
            loss: what the loss of the agent that had the branch means for the agent behind it.
        """
        if not self._over.is_set():
            self._code, self._said, self._loss = code, said, loss
            self._over.set()
            self.pipes.end()

    def is_ready(self) -> None:
        """Record that the agent is ready: earlier output cannot explain its end."""
        self._send(BranchReady(self._number))

    def leads_to(self, pid: int) -> None:
        """Do nothing: the agent is on another machine."""

    def said(self) -> str:
        """Return the last output of the process on standard error since the agent was ready."""
        return self._said

    def loss(self) -> AgentLost | None:
        """Return the loss of the agent that had the branch, if that has ended the branch."""
        return self._loss

    def kill(self) -> None:
        """End the branch. Its process is killed as soon as its agent gets the order, which waits for its end."""
        if not self._over.is_set():
            self._send(KillBranch(self._number))
            self.end()

    def known_open(self) -> float:
        """Return when the way to the agent was last known to be open, on the monotonic clock."""
        return self._known_open()

    async def wait(self) -> int | None:
        """Wait until the branch has ended, and return the exit code of its process; None: unknown."""
        await self._over.wait()
        return self._code

    def close(self) -> None:
        """Do nothing: no resources are held."""


class Branches:
    """All branches of one agent.

    Args:
        host: the agent's host.
        send: sends an order to the agent.
        heard_at: returns when it was last heard, on the monotonic clock.
    """

    def __init__(self, host: str, send: SendOrder, heard_at: Callable[[], float]) -> None:
        self._host = host
        self._send = send
        self._heard_at = heard_at
        self._branches: dict[int, Branch] = {}
        self._opened = 0
        self._loss: AgentLost | None = None

    def open(self, command: Sequence[str]) -> Branch:
        """Let the agent start a process that leads to the agent of another host."""
        self._opened += 1
        branch = Branch(self._opened, self._send, self._heard_at)
        if self._loss is None:
            self._branches[self._opened] = branch
            self._send(OpenBranch(self._opened, tuple(command)))
        else:
            branch.end(loss=self._loss)
        return branch

    def handle(self, message: FromBranch) -> None:
        """Handle the agent's message about a branch, which may already be over."""
        branch = self._branches.get(message.branch)
        if branch is None:
            return
        if isinstance(message, BranchData):
            branch.pipes.received(message.data)
        elif isinstance(message, BranchCredit):
            branch.pipes.credited(message.count)
        else:
            del self._branches[message.branch]
            branch.end(message.code, message.said)

    def lost(self, loss: AgentLost) -> None:
        """Record that the agent is lost, and all of its branches with it."""
        if self._loss is None:
            why = f"the connection to its agent leads through host {self._host}, which is lost"
            self._loss = AgentLost(why, loss.at if loss.silent else None)
        for branch in self._branches.values():
            branch.end(loss=self._loss)
        self._branches.clear()

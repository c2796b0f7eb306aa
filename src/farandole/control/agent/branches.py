"""Reaches the agents of other hosts for the launcher: one process for each, such as ssh, whose bytes are passed on.

So agents start agents, and the launcher need not reach every host itself. No port is opened, and the bytes are passed
on without inspection. Memory is bounded: for each branch and direction, at most `BRANCH_WINDOW` bytes are in transit.

A branch's process is killed by the kernel when this agent dies; the agent at its other end then loses its input, and
ends everything that it has started.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from typing import IO

from farandole.control.agent.branch_messages import (
    BRANCH_WINDOW,
    BranchCredit,
    BranchData,
    BranchEnded,
    BranchReady,
    CloseBranch,
    FromBranch,
    OpenBranch,
    ToBranch,
)
from farandole.control.agent.event_loop import Loop
from farandole.control.agent.process_tree import ProcessTree, die_with_parent, send

_CHUNK = 64 * 1024
_LONGEST_LAST_WORDS = 8 * 1024


class _Branch:
    """One process, and its pipes."""

    def __init__(self, number: int, pid: int, input: IO[bytes], output: IO[bytes], last_words: int) -> None:
        self.number = number
        self.pid = pid
        self.input: IO[bytes] | None = input
        self.output: IO[bytes] | None = output
        self.last_words = last_words
        """The file that contains its standard error."""
        self.said_at_start = 0
        """Number of bytes in that file when the agent at the other end was ready."""
        self.unsent = bytearray()
        self.closing = False
        """Whether its input is to be closed once everything was passed on."""
        self.ahead = 0
        """Number of bytes of its output that the launcher has not taken yet."""
        self.code: int | None = None
        """Its exit code, once it has ended."""

    def said(self) -> str:
        """Return its last lines on standard error since the agent at the other end was ready."""
        start = max(self.said_at_start, os.fstat(self.last_words).st_size - _LONGEST_LAST_WORDS)
        return os.pread(self.last_words, _LONGEST_LAST_WORDS, start).decode("utf-8", "replace")


class Branches:
    """The branches of one agent.

    Args:
        loop: the event loop of the agent.
        say: sends a message to the launcher.
    """

    def __init__(self, loop: Loop, say: Callable[[FromBranch], None]) -> None:
        self._loop = loop
        self._say = say
        self._branches: dict[int, _Branch] = {}

    @property
    def are_open(self) -> bool:
        """Whether a branch has not ended yet."""
        return bool(self._branches)

    def processes(self, tree: ProcessTree) -> set[int]:
        """Return the branches' processes and all processes below them."""
        pids = [branch.pid for branch in self._branches.values()]
        return {each for pid in pids for each in (pid, *tree.below(pid))}

    def carry_out(self, message: ToBranch) -> None:
        """Carry out an order about a branch, which may already have ended."""
        if isinstance(message, OpenBranch):
            self._open(message)
            return
        branch = self._branches.get(message.branch)
        if branch is None:
            return
        if isinstance(message, BranchData):
            branch.unsent += message.data
            self._send(branch)
        elif isinstance(message, BranchCredit):
            branch.ahead -= message.count
            self._read_on(branch)
        elif isinstance(message, BranchReady):
            branch.said_at_start = os.fstat(branch.last_words).st_size
        elif isinstance(message, CloseBranch):
            branch.closing = True
            self._send(branch)
        else:
            self._kill(branch)
            self._read_on(branch)

    def ended(self, pid: int, code: int) -> None:
        """Record that a child has ended; no-op if it is not a branch's process."""
        for branch in self._branches.values():
            if branch.pid == pid and branch.code is None:
                branch.code = code
                self._close_input(branch)
                self._read_on(branch)
                return

    def cut(self) -> None:
        """Kill all branches, because there is no launcher. From now on, their processes are like all others."""
        for branch in self._branches.values():
            self._kill(branch)
            os.close(branch.last_words)
        self._branches.clear()

    def _open(self, order: OpenBranch) -> None:
        try:
            branch = _started(order)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            self._say(BranchEnded(order.branch, None, f"{order.command[0]} cannot be started there: {error}"))
            return
        self._branches[order.branch] = branch
        self._read_on(branch)

    def _kill(self, branch: _Branch) -> None:
        if branch.code is None:
            send([branch.pid], signal.SIGKILL)
        self._close_input(branch)
        self._close_output(branch)

    # --- towards the branch --------------------------------------------------------------------------------------

    def _send(self, branch: _Branch) -> None:
        if branch.input is None:
            return
        try:
            sent = os.write(branch.input.fileno(), branch.unsent) if branch.unsent else 0
        except BlockingIOError:
            sent = 0
        except OSError:
            self._close_input(branch)  # Its process is about to end, which is reported.
            return
        if sent:
            del branch.unsent[:sent]
            self._say(BranchCredit(branch.number, sent))
        if branch.closing and not branch.unsent:
            self._close_input(branch)
        else:
            self._loop.watch(branch.input.fileno(), writable=(lambda: self._send(branch)) if branch.unsent else None)

    def _close_input(self, branch: _Branch) -> None:
        if branch.input is not None:
            self._loop.watch(branch.input.fileno())
            branch.input.close()
            branch.input = None
            branch.unsent.clear()

    # --- from the branch -----------------------------------------------------------------------------------------

    def _read_on(self, branch: _Branch) -> None:
        """Read as much as flow control allows: when there is something or, from an ended process, at once."""
        while branch.code is not None and branch.output is not None and branch.ahead < BRANCH_WINDOW:
            self._receive(branch)
        if branch.output is not None:
            wanted = branch.ahead < BRANCH_WINDOW
            self._loop.watch(branch.output.fileno(), (lambda: self._received(branch)) if wanted else None)
        elif branch.code is not None:
            self._end(branch, branch.code)

    def _received(self, branch: _Branch) -> None:
        self._receive(branch)
        self._read_on(branch)

    def _receive(self, branch: _Branch) -> None:
        assert branch.output is not None
        try:
            data = os.read(branch.output.fileno(), _CHUNK)
        except BlockingIOError:
            # What an ended process has left is complete, even if a process that it left behind has the pipe open.
            data = b""
            if branch.code is None:
                return
        if data:
            branch.ahead += len(data)
            self._say(BranchData(branch.number, data))
        else:
            self._close_output(branch)

    def _close_output(self, branch: _Branch) -> None:
        if branch.output is not None:
            self._loop.watch(branch.output.fileno())
            branch.output.close()
            branch.output = None

    def _end(self, branch: _Branch, code: int) -> None:
        del self._branches[branch.number]
        self._say(BranchEnded(branch.number, code, branch.said()))
        os.close(branch.last_words)


def _started(order: OpenBranch) -> _Branch:
    """Start the process of a branch.

    Raises:
        OSError, subprocess.SubprocessError, ValueError: it cannot be started.
    """
    # A file, not a pipe: nothing has to be read while ssh runs.
    last_words = os.memfd_create("farandole-branch", os.MFD_CLOEXEC)
    try:
        process = subprocess.Popen(
            order.command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=last_words,
            cwd="/",
            start_new_session=True,
            preexec_fn=die_with_parent(os.getpid()),
        )
    except BaseException:
        os.close(last_words)
        raise
    process.returncode = 0  # Reaped with all other children; Popen must not wait for it.
    assert process.stdin is not None and process.stdout is not None
    for pipe in (process.stdin, process.stdout):
        os.set_blocking(pipe.fileno(), False)
    return _Branch(order.branch, process.pid, process.stdin, process.stdout, last_words)

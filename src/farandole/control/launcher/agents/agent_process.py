"""The process of an agent on this machine, or the ssh that leads to an agent on another one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence

from farandole.base.child_python import own_environment
from farandole.control.launcher.agents.agent_link import EXIT_SECONDS
from farandole.control.launcher.agents.agent_lost import AgentLost
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.job.ssh_and_ship import SshOptions
from farandole.control.launcher.targets.local import AGENT, TAKE_OVER, local_command
from farandole.control.launcher.targets.ssh import ssh_command

_LONGEST_LAST_WORDS = 8 * 1024


class AgentProcess:
    """A process that runs, and what it writes to its standard error.

    Attributes:
        process: as asyncio has it.
        input: its standard input.
        output: its standard output.
    """

    def __init__(self, process: asyncio.subprocess.Process, last_words: int) -> None:
        assert process.stdin is not None and process.stdout is not None
        self.input = process.stdin
        self.output = process.stdout
        self.process = process
        self._last_words = last_words
        """The file that it has as its standard error."""
        self._itself: int | None = None
        """A descriptor of the agent's process, if `process` only leads to it."""
        self._said_at_start = 0
        """Bytes that ssh wrote before the agent was ready, such as warnings about keys."""

    @classmethod
    async def start(cls, host: Host, local: bool, ssh: SshOptions, socket_names: Sequence[str] = ()) -> AgentProcess:
        """Start an agent, in a session of its own so that Ctrl-C reaches the launcher only.

        Args:
            host: where.
            local: whether that is this machine.
            ssh: how others are reached.
            socket_names: take over the agent that waits at one of them and has lost its launcher (see `Outlive`),
                instead of starting one.

        Raises:
            AgentLost: there is no ssh here.
        """
        module = TAKE_OVER if socket_names else AGENT
        # A file, not a pipe: an ssh that stays in the background, as ControlPersist has it, would hold that open.
        last_words = os.memfd_create("farandole-agent", os.MFD_CLOEXEC)
        command = local_command(host.python, module) if local else ssh_command(host, ssh, module)
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=last_words,
                start_new_session=True,
                cwd="/",  # python -m looks for modules here first; nothing of the user's may be taken for ours.
                env=own_environment() if local else None,
            )
        except OSError as error:
            os.close(last_words)
            raise AgentLost(f"{command[0]} cannot be started here: {error.strerror}") from None
        if socket_names:
            assert process.stdin is not None
            process.stdin.write(f"{' '.join(socket_names)}\n".encode())
        return cls(process, last_words)

    def is_ready(self) -> None:
        """Record that the agent is ready: what was written up to now says nothing about its end."""
        self._said_at_start = os.fstat(self._last_words).st_size

    def leads_to(self, pid: int) -> None:
        """Record that an agent on this machine was taken over, and which process it is."""
        with contextlib.suppress(OSError, AttributeError):  # An old kernel, or it has just died.
            self._itself = os.pidfd_open(pid)

    def said(self) -> str:
        """Return the last that the agent, or ssh, wrote to its standard error since the agent was ready."""
        start = max(self._said_at_start, os.fstat(self._last_words).st_size - _LONGEST_LAST_WORDS)
        return os.pread(self._last_words, _LONGEST_LAST_WORDS, start).decode("utf-8", "replace")

    def kill(self) -> None:
        """Kill it, if it lives."""
        if self.process.returncode is None:
            self.process.kill()
        if self._itself is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._itself, signal.SIGKILL)

    async def wait(self) -> int:
        """Wait until it has ended, and return how."""
        return await self.process.wait()

    async def exit_code(self) -> int | None:
        """Return how a process ended that has no more to say; None when it stays."""
        try:
            return await asyncio.wait_for(self.process.wait(), EXIT_SECONDS)
        except (TimeoutError, asyncio.TimeoutError):
            return None

    def close(self) -> None:
        """Let go of what is held for it. Call it when it has ended."""
        os.close(self._last_words)
        if self._itself is not None:
            os.close(self._itself)
            self._itself = None

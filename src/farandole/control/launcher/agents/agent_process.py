"""The process of an agent on this machine, or the ssh that leads to an agent on another one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Sequence

from farandole.base.installed import own_environment
from farandole.control.agent.process_tree import die_with_parent
from farandole.control.launcher.agents.agent_lost import AgentLost
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.job.ssh_and_ship import SshOptions
from farandole.control.launcher.targets.local import AGENT, TAKE_OVER, local_command
from farandole.control.launcher.targets.ssh import ssh_command

_LONGEST_LAST_WORDS = 8 * 1024


class AgentProcess:
    """A running process, and its standard error.

    Attributes:
        process: the asyncio process.
        input: its standard input.
        output: its standard output.
    """

    def __init__(self, process: asyncio.subprocess.Process, last_words: int) -> None:
        assert process.stdin is not None and process.stdout is not None
        self.input = process.stdin
        self.output = process.stdout
        self.process = process
        self._last_words = last_words
        """The file that contains its standard error."""
        self._itself: int | None = None
        """A descriptor of the agent's process, if `process` is only connected to it."""
        self._said_at_start = 0
        """Number of bytes that ssh wrote before the agent was ready, such as warnings about keys."""

    @classmethod
    async def start(cls, host: Host, local: bool, ssh: SshOptions, socket_names: Sequence[str] = ()) -> AgentProcess:
        """Start an agent in its own session, so that Ctrl-C reaches only the launcher.

        Args:
            host: the host to start it on.
            local: whether that is this machine.
            ssh: the ssh options for reaching other hosts.
            socket_names: if given, take over the agent that has lost its launcher and waits at one of these sockets
                (see `Outlive`) instead of starting one.

        Raises:
            AgentLost: ssh is missing on this machine.
        """
        module = TAKE_OVER if socket_names else AGENT
        # A file, not a pipe: an ssh that stays in the background, as with ControlPersist, would keep a pipe open.
        last_words = os.memfd_create("farandole-agent", os.MFD_CLOEXEC)
        command = local_command(host.python, module) if local else ssh_command(host, ssh, module)
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=last_words,
                start_new_session=True,
                cwd="/",  # python -m looks here first; a user's file must not shadow a module of ours.
                env=own_environment() if local else None,
                # An agent here notices the launcher's death, and may wait for another one. An ssh to a host that is cut
                # off would wait until TCP gives up, after about 15 minutes.
                preexec_fn=None if local else die_with_parent(os.getpid()),
            )
        except OSError as error:
            os.close(last_words)
            raise AgentLost(f"{command[0]} cannot be started here: {error.strerror}") from None
        if socket_names:
            assert process.stdin is not None
            process.stdin.write(f"{' '.join(socket_names)}\n".encode())
        return cls(process, last_words)

    def is_ready(self) -> None:
        """Record that the agent is ready: earlier output cannot explain its end."""
        self._said_at_start = os.fstat(self._last_words).st_size

    def leads_to(self, pid: int) -> None:
        """Record the process id of an agent on this machine that was taken over."""
        with contextlib.suppress(OSError, AttributeError):  # An old kernel, or the agent has just died.
            self._itself = os.pidfd_open(pid)

    def said(self) -> str:
        """Return the last output of the agent, or of ssh, on standard error since the agent was ready."""
        start = max(self._said_at_start, os.fstat(self._last_words).st_size - _LONGEST_LAST_WORDS)
        return os.pread(self._last_words, _LONGEST_LAST_WORDS, start).decode("utf-8", "replace")

    def known_open(self) -> float:
        """Return the time on the monotonic clock: no other agent is on the way to this one."""
        return time.monotonic()

    def loss(self) -> AgentLost | None:
        """Return None: no other agent is on the way to this one."""
        return None

    def kill(self) -> None:
        """Kill the process, if it is alive."""
        if self.process.returncode is None:
            self.process.kill()
        if self._itself is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._itself, signal.SIGKILL)

    async def wait(self) -> int:
        """Wait until it has ended, and return its exit code."""
        return await self.process.wait()

    def close(self) -> None:
        """Release the resources held for it. Call this after it has ended."""
        os.close(self._last_words)
        if self._itself is not None:
            os.close(self._itself)
            self._itself = None

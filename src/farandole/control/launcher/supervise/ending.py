"""The end of a job: how long it may take, and what is done when it does not come."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterable

from farandole.control.agent import sweep
from farandole.control.agent.protocol import Task
from farandole.control.launcher.agents.agent_client import AgentClient
from farandole.control.launcher.agents.agent_lost import AgentLost
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.job.ssh_and_ship import SshOptions
from farandole.control.launcher.supervise.output_flow import OutputFlow

GRACE_SECONDS = 5.0
# An agent that has been told to end all, and is silent for so long, is stuck itself.
STUCK_SECONDS = 20.0
# An interrupted job does not wait longer than this for a reader of its output that does not read.
READER_SECONDS = 2.0


class Ending:
    """That a job is being ended.

    Attributes:
        since: on the monotonic clock; None while it is not.
        kill_at: when what is left is killed.
        stop_code: the exit code, if that was decided from outside.
    """

    def __init__(self) -> None:
        self.since: float | None = None
        self.kill_at = 0.0
        self.stop_code: int | None = None

    @property
    def begun(self) -> bool:
        """Whether the job is about to end."""
        return self.since is not None

    def begin(self, grace: float) -> bool:
        """Note that all workers get so many seconds to end, or fewer if they had fewer; return whether that is new."""
        now = time.monotonic()
        first = self.since is None
        if first:
            self.since = now
            self.kill_at = now + grace
        self.kill_at = min(self.kill_at, now + grace)
        return first

    async def watch(self, agents: Callable[[], Iterable[AgentClient]], flow: OutputFlow) -> None:
        """Kill agents that are stuck. From the beginning of the end on: a launcher that has nothing to do sleeps."""
        while True:
            await asyncio.sleep(0.25)
            now = time.monotonic()
            reader_stuck = flow.unwritten > 0
            if reader_stuck and self.stop_code is None:
                continue  # As any program, the launcher waits for the reader of its output.
            timeout = READER_SECONDS if reader_stuck else STUCK_SECONDS
            for agent in agents():
                # Beats of another host say that its agent lives, not that it gets on.
                if now > max(self.kill_at, agent.heard_at if agent.local else self.kill_at) + timeout:
                    agent.kill()


async def sweep_here(mark: str) -> tuple[int, ...]:
    """Kill what a dead agent of this machine can no longer kill; return what even that does not end.

    Args:
        mark: a variable, as `NAME=value`, that all of it has in its environment.
    """
    deadline = time.monotonic() + STUCK_SECONDS
    while left := sweep.sweep_step(mark):
        if time.monotonic() > deadline:
            return tuple(left)
        await asyncio.sleep(0.02)
    return ()


async def sweep_elsewhere(host: Host, ssh: SshOptions, mark: str) -> bool:
    """Do the same on a host whose agent is lost; False if it cannot be reached."""
    fresh = None
    try:
        fresh = await AgentClient.start(host, False, ssh)
        await asyncio.wait_for(fresh.ready(), sweep.SECONDS)
        order = (host.python or sys.executable, "-m", "farandole.control.agent.sweep")
        await fresh.ask(lambda number: Task(number, order, {}, "/", mark.encode(), sweep.SECONDS), sweep.SECONDS)
        return True
    except (AgentLost, TimeoutError, asyncio.TimeoutError):
        return False
    finally:
        if fresh is not None:
            await fresh.close()

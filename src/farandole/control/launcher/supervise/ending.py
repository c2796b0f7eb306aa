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

# An agent that has been told to end all, and is silent for so long, is stuck itself.
STUCK_SECONDS = 20.0
# An interrupted job does not wait longer than this for a reader of its output that does not read.
READER_SECONDS = 2.0


async def watch_end(
    kill_at: Callable[[], float],
    stopped: Callable[[], bool],
    agents: Callable[[], Iterable[AgentClient]],
    flow: OutputFlow,
) -> None:
    """Kill agents that are stuck. From the beginning of the end on: a launcher that has nothing to do sleeps.

    Args:
        kill_at: returns when, on the monotonic clock, agents kill what is left.
        stopped: returns whether the user wants the job to end.
        agents: returns those that have not ended.
        flow: of what the workers print.
    """
    while True:
        await asyncio.sleep(0.25)
        now = time.monotonic()
        reader_stuck = flow.unwritten > 0
        if reader_stuck and not stopped():
            continue  # As any program, the launcher waits for the reader of its output.
        timeout = READER_SECONDS if reader_stuck else STUCK_SECONDS
        for agent in agents():
            # Beats of another host say that its agent lives, not that it gets on.
            if now > max(kill_at(), agent.heard_at if agent.local else kill_at()) + timeout:
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

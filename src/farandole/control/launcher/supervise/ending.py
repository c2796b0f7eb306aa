"""The end of a job: kills agents that do not end in time, and processes that dead agents have left."""

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

# Seconds of silence after which an agent that was ordered to end is considered stuck.
STUCK_SECONDS = 20.0
# Seconds that an interrupted job waits at most for a stalled reader of its output.
READER_SECONDS = 2.0


async def watch_end(
    kill_at: Callable[[], float],
    stopped: Callable[[], bool],
    agents: Callable[[], Iterable[AgentClient]],
    flow: OutputFlow,
) -> None:
    """Kill agents that are stuck. Started only when the job is being ended, so that an idle launcher sleeps.

    Args:
        kill_at: returns when agents kill the remaining processes, on the monotonic clock, in seconds.
        stopped: returns whether the user wants the job to end.
        agents: returns the agents that have not ended.
        flow: the output of the workers.
    """
    while True:
        await asyncio.sleep(0.25)
        now = time.monotonic()
        reader_stuck = flow.unwritten > 0
        if reader_stuck and not stopped():
            continue  # Like any program, the launcher waits for the reader of its output.
        timeout = READER_SECONDS if reader_stuck else STUCK_SECONDS
        for agent in agents():
            # Heartbeats from another host prove that its agent is alive, not that it makes progress.
            if now > max(kill_at(), agent.heard_at if agent.local else kill_at()) + timeout:
                agent.kill()


async def sweep_here(mark: str) -> tuple[int, ...]:
    """Kill processes that a dead agent on this machine has left behind; return those that survive even SIGKILL.

    Args:
        mark: a variable, as `NAME=value`, in the environment of all these processes.
    """
    deadline = time.monotonic() + STUCK_SECONDS
    while left := sweep.sweep_step(mark):
        if time.monotonic() > deadline:
            return tuple(left)
        await asyncio.sleep(0.02)
    return ()


async def sweep_elsewhere(host: Host, ssh: SshOptions, mark: str) -> bool:
    """Kill such processes on a host whose agent is lost; return False if the host cannot be reached."""
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

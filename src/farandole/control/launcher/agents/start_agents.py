"""Starts the agents of all hosts of a job together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from farandole.control.launcher.agents.agent_client import AgentClient
from farandole.control.launcher.agents.agent_lost import AgentLost
from farandole.control.launcher.agents.reception import Reception
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.job.ssh_and_ship import SshOptions

# Number of agents started at a time: each costs a process here, and often much more in its first moment.
STARTED_AT_ONCE = 32


async def start_agents(
    hosts: Sequence[tuple[Host, bool]], ssh: SshOptions, reception: Reception | None = None
) -> tuple[list[AgentClient], dict[str, AgentLost]]:
    """Start an agent on every host at once, and wait until each is ready or has failed.

    If this is cancelled, or fails, all agents have ended before the exception is raised.

    Args:
        hosts: the hosts, and whether each is this machine.
        reception: accepts the hosts, which dial; None: they are reached from here.
        ssh: the ssh options for reaching other hosts.

    Returns:
        The agents that are ready, in the order of the hosts; and the errors of the other hosts, by label.
    """
    room = asyncio.Semaphore(STARTED_AT_ONCE)
    lost: dict[str, AgentLost] = {}

    async def start(host: Host, local: bool) -> AgentClient | None:
        async with room:
            agent = None
            try:
                if reception is None:
                    agent = await AgentClient.start(host, local, ssh)
                else:
                    agent = AgentClient(host, local, await reception.begin(host))
                await agent.ready()
                return agent
            except BaseException as error:
                if agent is not None:
                    await agent.close()
                if not isinstance(error, AgentLost):
                    raise
                lost[host.label] = error
                return None

    starting = [asyncio.create_task(start(host, local)) for host, local in hosts]
    try:
        started = await asyncio.gather(*starting)
    except BaseException as error:
        # `gather` does not wait for the other hosts, and drops the agents that are ready. If it was cancelled, it has
        # cancelled the tasks; a second time would interrupt them while they wait for the end of their agents.
        if not isinstance(error, asyncio.CancelledError):
            for task in starting:
                task.cancel()
        ended = await asyncio.gather(*starting, return_exceptions=True)
        await asyncio.gather(*(agent.close() for agent in ended if isinstance(agent, AgentClient)))
        raise
    return [agent for agent in started if agent is not None], lost

"""Starts the agents of all hosts of a job together: from here, or along a tree of hosts (see `targets.start_tree`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from farandole.base.display.wording import count
from farandole.base.installed import own_version
from farandole.control.launcher.agents.agent_client import AgentClient
from farandole.control.launcher.agents.agent_lost import AgentLost
from farandole.control.launcher.agents.reception import Reception
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.job.ssh_and_ship import SshOptions
from farandole.control.launcher.targets.ssh import ssh_command
from farandole.control.launcher.targets.start_tree import Subtree, from_another_host, split

# Number of agents started at a time by one process: each costs a process there, and often much more in its first
# moment.
STARTED_AT_ONCE = 32


@dataclass(frozen=True)
class Detour:
    """A host that the launcher reaches itself, because the host that should have started its agent could not."""

    host: str
    other: str
    """The host that should have started it."""
    why: str
    """The messages of ssh there."""


async def start_agents(
    hosts: Sequence[tuple[Host, bool]],
    ssh: SshOptions,
    reception: Reception | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[list[AgentClient], dict[str, AgentLost]]:
    """Start an agent on every host at once, and wait until each is ready or has failed.

    If this is cancelled, or fails, all agents have ended before the exception is raised.

    Args:
        hosts: the hosts, and whether each is this machine.
        reception: accepts the hosts, which dial; None: they are reached from here.
        ssh: the ssh options for reaching other hosts.
        say: called with a line for the user, if hosts cannot reach each other as the tree needs it.

    Returns:
        The agents that are ready, in the order of the hosts; and the errors of the other hosts, by label.
    """
    start = _Start(ssh, reception)
    await start.run(hosts)
    if start.detours:
        say(tell_detours(start.detours))
    return [start.agents[host.label] for host, _ in hosts if host.label in start.agents], start.lost


class _Start:
    """The start of all agents of a job.

    Attributes:
        agents: the agents that are ready, by label.
        lost: the errors of the other hosts, by label.
        detours: hosts that could not be reached along the tree, but from here.
    """

    def __init__(self, ssh: SshOptions, reception: Reception | None) -> None:
        self.agents: dict[str, AgentClient] = {}
        self.lost: dict[str, AgentLost] = {}
        self.detours: list[Detour] = []
        self._ssh = ssh
        self._reception = reception
        self._room = asyncio.Semaphore(STARTED_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, hosts: Sequence[tuple[Host, bool]]) -> None:
        """Start all agents."""
        for host, local in hosts:
            if local or self._reception is not None:
                self._spawn(self._reach(Subtree(host), local, None, self._room))
        if self._reception is None:
            self._reach_all([host for host, local in hosts if not local], None)
        if not self._tasks:
            return
        try:
            await self._over
        except BaseException:
            # Only once: a second time would interrupt tasks that wait for the end of their agents.
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(*(agent.close() for agent in self.agents.values()))
            raise

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._over.done() or task.cancelled():
            return
        if error := task.exception():
            self._over.set_exception(error)
        elif not self._tasks:
            self._over.set_result(None)

    def _reach_all(self, hosts: Sequence[Host], through: AgentClient | None) -> None:
        """Start to reach hosts through the agent of another one, or from here."""
        room = asyncio.Semaphore(STARTED_AT_ONCE) if through else self._room
        for part in split(hosts, self._ssh):
            self._spawn(self._reach(part, False, through, room))

    async def _reach(self, part: Subtree, local: bool, through: AgentClient | None, room: asyncio.Semaphore) -> None:
        """Start the agent of a host, and then, through it, those of the hosts below."""
        host = part.host
        agent = await self._try(host, local, through, room)
        if through is not None and isinstance(agent, AgentLost):
            why = str(agent)
            agent = await self._try(host, local, None, self._room)
            if isinstance(agent, AgentClient) and not through.is_lost:
                self.detours.append(Detour(host.label, through.host.label, why))
        if isinstance(agent, AgentLost):
            self.lost[host.label] = agent
        else:
            self.agents[host.label] = agent
        self._reach_all(part.below, _usable(agent))

    async def _try(
        self, host: Host, local: bool, through: AgentClient | None, room: asyncio.Semaphore
    ) -> AgentClient | AgentLost:
        async with room:
            agent = None
            try:
                if self._reception is not None:
                    agent = AgentClient(host, local, await self._reception.begin(host))
                elif through is not None:
                    command = ssh_command(host, from_another_host(self._ssh))
                    agent = AgentClient(host, local, through.branches.open(command))
                else:
                    agent = await AgentClient.start(host, local, self._ssh)
                await agent.ready()
                return agent
            except BaseException as error:
                if agent is not None:
                    await agent.close()
                if not isinstance(error, AgentLost):
                    raise
                return error


def _usable(agent: AgentClient | AgentLost) -> AgentClient | None:
    """Return an agent that can start others: it speaks this version's protocol. If not, the job will be refused."""
    if isinstance(agent, AgentClient) and agent.facts is not None and agent.facts.version == own_version():
        return agent
    return None


def tell_detours(detours: Sequence[Detour]) -> str:
    """Return the line about hosts that other hosts could not reach, with what would make that possible."""
    others = {each.other for each in detours}
    whence = detours[0].other if len(others) == 1 else f"{len(others)} other hosts"
    first, them = detours[0], "it" if len(detours) == 1 else "them"
    said = f"{first.host} from {first.other}: {first.why.strip().splitlines()[-1]}"
    return (
        f"note: {count(len(detours), 'host')} cannot be reached from {whence} by ssh ({said}); the launcher reaches "
        f"{them} itself. To start agents from there, let hosts log in to each other, by keys or --ssh-option "
        "ForwardAgent=yes, and know each other's host keys; or choose --ssh-fanout 0"
    )

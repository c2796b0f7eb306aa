"""An agent on this machine, whose workers a test starts and ends, and its messages."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from farandole.control.agent.protocol import (
    Closed,
    Credit,
    End,
    FromAgent,
    Output,
    Start,
)
from farandole.control.agent.worker_cleanup import WORKER_VARIABLE
from farandole.control.launcher.agents.agent_client import AgentClient
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.job.ssh_and_ship import SshOptions

Message = TypeVar("Message")

# A worker that starts a child in a new session, a child of which the parent dies, and sleeps.
FAMILY = """\
import os, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(1000)"]
child = subprocess.Popen(sleep, start_new_session=True)
orphan = subprocess.Popen(["/bin/sh", "-c", "setsid sleep 1000 & echo $!"], stdout=subprocess.PIPE)
print(os.getpid(), child.pid, orphan.stdout.readline().decode().strip(), flush=True)
"""

# Waits for a file, and continues.
WHEN_THERE_IS = "import os, time\nwhile not os.path.exists({path!r}): time.sleep(0.01)\n"


class Workers:
    """An agent on this machine, and its messages."""

    def __init__(self, agent: AgentClient) -> None:
        self.agent = agent
        self.heard: list[FromAgent] = []
        self.news = asyncio.Event()
        self.listening = asyncio.create_task(agent.listen(self.hear))

    def hear(self, message: FromAgent) -> None:
        self.heard.append(message)
        self.news.set()
        if isinstance(message, Output):
            self.agent.send(Credit(message.rank, message.stream, len(message.data)))

    def start(self, worker: int, script: str) -> None:
        environment = {**os.environ, WORKER_VARIABLE: str(worker)}
        self.agent.send(Start(worker, (sys.executable, "-c", script), environment, "/", elastic=True))

    async def hears(self, kind: type[Message], like: Callable[[Message], object] = lambda message: True) -> Message:
        async def wait() -> Message:
            while True:
                for message in self.heard:
                    if isinstance(message, kind) and like(message):
                        return message
                self.news.clear()
                await self.news.wait()

        return await asyncio.wait_for(wait(), 60)

    async def output(self, worker: int) -> str:
        """Return a worker's standard output, once it ends with a complete line: it may arrive in pieces."""

        def so_far() -> str:
            mine = [each for each in self.heard if isinstance(each, Output) and (each.rank, each.stream) == (worker, 1)]
            return b"".join(each.data for each in mine).decode()

        await self.hears(Output, lambda message: so_far().endswith("\n"))
        return so_far()

    async def closed(self, worker: int) -> None:
        await self.hears(Closed, lambda message: (message.rank, message.stream) == (worker, 1))
        await self.hears(Closed, lambda message: (message.rank, message.stream) == (worker, 2))

    async def end(self) -> None:
        self.agent.send(End(0))
        assert await asyncio.wait_for(self.listening, 60) == ()


def with_agent(work: Callable[[Workers], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        agent = await AgentClient.start(Host("here"), True, SshOptions())
        try:
            await agent.ready()
            workers = Workers(agent)
            await work(workers)
            await workers.end()
        finally:
            await agent.close()

    asyncio.run(run())


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def all_have_ended(pids: list[int]) -> None:
    """Wait until none of the processes is alive; a killed one may take a moment."""

    async def look() -> None:
        while any(map(lives, pids)):
            await asyncio.sleep(0.01)

    await asyncio.wait_for(look(), 60)

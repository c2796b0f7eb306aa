"""An agent whose workers come and go: one is ended with all it started, one is stopped, and the others run on."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from farandole.agent.departures import WORKER_VARIABLE
from farandole.agent.messages import (
    Closed,
    Credit,
    End,
    Exited,
    FromAgent,
    Leaving,
    Output,
    Stalled,
    Start,
    Started,
    Stop,
)
from farandole.launcher.agents import Agent
from farandole.launcher.elastic import preemption
from farandole.launcher.elastic.preemption import Lookout
from farandole.launcher.elastic.spec import Elastic
from farandole.launcher.hosts import Host
from farandole.launcher.reach import SshOptions

Message = TypeVar("Message")

# A worker that starts a child in a session of its own, a child of which the parent dies, and sleeps.
FAMILY = """\
import os, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(1000)"]
child = subprocess.Popen(sleep, start_new_session=True)
orphan = subprocess.Popen(["/bin/sh", "-c", "setsid sleep 1000 & echo $!"], stdout=subprocess.PIPE)
print(os.getpid(), child.pid, orphan.stdout.readline().decode().strip(), flush=True)
"""


class Workers:
    """An agent on this machine, and what it says."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.heard: list[FromAgent] = []
        self.news = asyncio.Event()
        self.listening = asyncio.create_task(agent.listen(self.hear))

    def hear(self, message: FromAgent) -> None:
        self.heard.append(message)
        self.news.set()
        if isinstance(message, Output):
            self.agent.tell(Credit(message.rank, message.stream, len(message.data)))

    def start(self, worker: int, script: str) -> None:
        environment = {**os.environ, WORKER_VARIABLE: str(worker)}
        self.agent.tell(Start(worker, (sys.executable, "-c", script), environment, "/", elastic=True))

    async def hears(self, kind: type[Message], like: Callable[[Message], object] = lambda message: True) -> Message:
        async def wait() -> Message:
            while True:
                for message in self.heard:
                    if isinstance(message, kind) and like(message):
                        return message
                self.news.clear()
                await self.news.wait()

        return await asyncio.wait_for(wait(), 20)

    async def output(self, worker: int) -> str:
        message = await self.hears(Output, lambda message: message.rank == worker)
        return message.data.decode()

    async def closed(self, worker: int) -> None:
        await self.hears(Closed, lambda message: (message.rank, message.stream) == (worker, 1))
        await self.hears(Closed, lambda message: (message.rank, message.stream) == (worker, 2))

    async def end(self) -> None:
        self.agent.tell(End(0))
        assert await asyncio.wait_for(self.listening, 20) == ()


def with_agent(work: Callable[[Workers], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        agent = await Agent.start(Host("here"), True, SshOptions())
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
    """Wait until no process lives; a killed one may take a moment."""

    async def look() -> None:
        while any(map(lives, pids)):
            await asyncio.sleep(0.01)

    await asyncio.wait_for(look(), 30)


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("grace", [0.0, 0.5])
def test_one_worker_is_ended_with_all_it_started(grace: float, stopped: bool) -> None:
    async def work(workers: Workers) -> None:
        workers.start(0, FAMILY + "time.sleep(1000)")
        workers.start(1, FAMILY + "time.sleep(1000)")
        ended, stays = [[int(pid) for pid in (await workers.output(worker)).split()] for worker in (0, 1)]
        assert all(map(lives, ended + stays))
        if stopped:
            os.kill(ended[0], signal.SIGSTOP)
        workers.agent.tell(Stop(0, grace))
        exited = await workers.hears(Exited)
        assert (exited.rank, exited.code) == (0, -signal.SIGTERM if grace else -signal.SIGKILL)
        await workers.closed(0)
        await all_have_ended(ended)
        assert all(map(lives, stays))

    with_agent(work)


def test_what_a_worker_leaves_behind_ends_with_it() -> None:
    async def work(workers: Workers) -> None:
        workers.start(0, FAMILY)
        pids = [int(pid) for pid in (await workers.output(0)).split()]
        exited = await workers.hears(Exited)
        assert exited.code == 0
        await workers.hears(Closed)
        await all_have_ended(pids)

    with_agent(work)


def test_a_worker_that_takes_no_notice_of_sigterm_is_killed_when_its_time_is_up() -> None:
    async def work(workers: Workers) -> None:
        workers.start(0, "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(99)")
        await workers.output(0)
        workers.agent.tell(Stop(0, 0.2))
        assert (await workers.hears(Exited)).code == -signal.SIGKILL

    with_agent(work)


def test_a_stopped_worker_is_noticed_and_so_is_its_going_on() -> None:
    async def work(workers: Workers) -> None:
        workers.start(0, "import time; time.sleep(1000)")
        pid = (await workers.hears(Started)).pid
        os.kill(pid, signal.SIGSTOP)
        assert await workers.hears(Stalled) == Stalled(0, True)
        os.kill(pid, signal.SIGCONT)
        assert await workers.hears(Stalled, lambda message: not message.stopped) == Stalled(0, False)

    with_agent(work)


def test_an_agent_that_is_asked_to_go_says_so_and_stays() -> None:
    async def work(workers: Workers) -> None:
        workers.start(0, "import time; time.sleep(1000)")
        pid = (await workers.hears(Started)).pid
        workers.agent._process.terminate()
        await workers.hears(Leaving)
        assert lives(pid)

    with_agent(work)


def test_an_agent_does_not_grow_with_the_workers_it_has_had() -> None:
    async def work(workers: Workers) -> None:
        sizes = []
        for worker in range(150):
            workers.agent.tell(Start(worker, ("/bin/echo", "hello"), {WORKER_VARIABLE: str(worker)}, "/", elastic=True))
            await workers.closed(worker)
            await workers.hears(Exited)
            workers.heard.clear()
            pid = workers.agent._process.pid
            sizes.append((_resident(pid), len(os.listdir(f"/proc/{pid}/fd"))))
        assert sizes[-1][0] - sizes[30][0] < 512 * 1024
        assert sizes[-1][1] < sizes[30][1] + 5  # It may just be reading in /proc.

    with_agent(work)


def test_what_a_host_says_of_its_being_taken_away_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preemption, "COMMAND_SECONDS", 0.5)
    notice = tmp_path / "notice"
    warned: list[str] = []

    async def work(workers: Workers) -> None:
        async def look(elastic: Elastic) -> str | None:
            return await Lookout(elastic, os.environ, warned.append).look(workers.agent, str(tmp_path))

        by_file = Elastic(1, None, preemption_file="notice")
        by_command = Elastic(1, None, preemption_command="test -e notice && cat notice")
        assert [await look(by_file), await look(by_command), await look(Elastic(1, None))] == ["", "", ""]
        notice.write_text("soon\n")
        assert [await look(by_file), await look(by_command)] == ["there is a file notice", "soon"]
        assert not warned
        assert await look(Elastic(1, None, preemption_command="no_such_program")) is None
        assert await look(Elastic(1, None, preemption_command="sleep 1000")) is None

    with_agent(work)
    first, second = warned
    assert first.startswith("warning: on host here, --preemption-command ended with code 127 (")
    assert "--preemption-command was killed by SIGKILL" in second


def test_a_host_that_gives_no_answer_is_told_of_once_and_looked_at_again(tmp_path: Path) -> None:
    """The command fails, then says that there is a notice, twice, then that there is none."""
    script = "echo >> asked; case $(wc -l < asked) in 1|2) exit 7;; 3|4) echo soon;; *) exit 1;; esac"
    warned: list[str] = []
    told: list[str] = []

    async def work(workers: Workers) -> None:
        elastic = Elastic(1, None, preemption_command=script, preemption_interval=0.01)
        done = asyncio.Event()

        def tell(notice: str) -> None:
            told.append(notice)
            if len(told) == 2:
                done.set()

        lookout = Lookout(elastic, os.environ, warned.append)
        watching = asyncio.create_task(lookout.watch(workers.agent, str(tmp_path), tell))
        await asyncio.wait_for(done.wait(), 20)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    with_agent(work)
    assert told == ["soon", ""]
    assert len(warned) == 1


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

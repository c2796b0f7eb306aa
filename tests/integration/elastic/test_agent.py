"""An agent whose workers come and go: one is ended with all it started, one is stopped, and the others run on."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from farandole.agent.failover_socket import address_of
from farandole.agent.protocol import (
    Beat,
    Closed,
    Credit,
    End,
    Exited,
    FromAgent,
    Leaving,
    Outlive,
    Output,
    Resumed,
    Stalled,
    Start,
    Started,
    Stop,
)
from farandole.agent.worker_cleanup import WORKER_VARIABLE
from farandole.launcher.agents.agent_client import AgentClient
from farandole.launcher.agents.agent_lost import AgentLost
from farandole.launcher.host_setup import preemption
from farandole.launcher.host_setup.preemption import PreemptionWatch
from farandole.launcher.job.elastic import Elastic
from farandole.launcher.job.host_list import Host
from farandole.launcher.job.options import SshOptions
from farandole.wire.address import format_address, parse_address

Message = TypeVar("Message")

# A worker that starts a child in a session of its own, a child of which the parent dies, and sleeps.
FAMILY = """\
import os, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(1000)"]
child = subprocess.Popen(sleep, start_new_session=True)
orphan = subprocess.Popen(["/bin/sh", "-c", "setsid sleep 1000 & echo $!"], stdout=subprocess.PIPE)
print(os.getpid(), child.pid, orphan.stdout.readline().decode().strip(), flush=True)
"""

# Waits for a file, and goes on.
WHEN_THERE_IS = "import os, time\nwhile not os.path.exists({path!r}): time.sleep(0.01)\n"


class Workers:
    """An agent on this machine, and what it says."""

    def __init__(self, agent: AgentClient) -> None:
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
        """Return what it has written to its standard output, once that ends with a line: it may come in pieces."""

        def so_far() -> str:
            mine = [each for each in self.heard if isinstance(each, Output) and (each.rank, each.stream) == (worker, 1)]
            return b"".join(each.data for each in mine).decode()

        await self.hears(Output, lambda message: so_far().endswith("\n"))
        return so_far()

    async def closed(self, worker: int) -> None:
        await self.hears(Closed, lambda message: (message.rank, message.stream) == (worker, 1))
        await self.hears(Closed, lambda message: (message.rank, message.stream) == (worker, 2))

    async def end(self) -> None:
        self.agent.tell(End(0))
        assert await asyncio.wait_for(self.listening, 20) == ()


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
    """Wait until no process lives; a killed one may take a moment."""

    async def look() -> None:
        while any(map(lives, pids)):
            await asyncio.sleep(0.01)

    await asyncio.wait_for(look(), 30)


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("grace", [0.0, 20.0])  # Nobody waits for that: they die of SIGTERM.
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
        workers.agent._process.process.terminate()
        await workers.hears(Leaving)
        assert lives(pid)

    with_agent(work)


# --- agents whose launcher is killed --------------------------------------------------------------------------------

DOOR = f"test-{os.getpid()}"
# Prints numbers until there is a file, and ends. Lines come in one piece, also where Python does not buffer.
COUNTING = """\
import itertools, os, time
for number in itertools.count():
    print(f'{{number}}\\n', end='', flush=True)
    time.sleep(0.05)
    if os.path.exists({path!r}): break
print('end\\n', end='', flush=True)
"""


def loses_its_launcher(workers: Workers) -> None:
    """Hang up, as the kernel does for a launcher that was killed."""
    workers.listening.cancel()
    stdin = workers.agent._process.process.stdin
    assert stdin is not None
    stdin.close()


async def is_reaped(pid: int) -> None:
    """Wait until the agent has taken note of the end of a worker."""

    async def look() -> None:
        while os.path.exists(f"/proc/{pid}"):
            await asyncio.sleep(0.01)

    await asyncio.wait_for(look(), 30)


async def take_over(work: Callable[[Workers], Coroutine[Any, Any, None]], *doors: str) -> None:
    """Be the next launcher."""
    agent = await AgentClient.start(Host("here"), True, SshOptions(), doors or (DOOR,))
    try:
        workers = Workers(agent)
        await work(workers)
        await workers.end()
    finally:
        await agent.close()


def with_lost_agent(work: Callable[[Workers], Coroutine[Any, Any, None]], seconds: float = 20.0) -> None:
    """Do something with an agent that may outlive its launcher by so long, and see that nothing is left of it."""

    async def run() -> None:
        agent = await AgentClient.start(Host("here"), True, SshOptions())
        await agent.ready()
        agent.tell(Outlive(DOOR, seconds))
        workers = Workers(agent)
        await work(workers)
        assert await asyncio.wait_for(agent._process.wait(), 20) == 0
        await agent.close()

    asyncio.run(run())


def test_another_launcher_takes_over_workers_and_what_they_print(tmp_path: Path) -> None:
    async def work(first: Workers) -> None:
        first.start(3, COUNTING.format(path=str(tmp_path / "enough")))
        pid = (await first.hears(Started)).pid
        await first.hears(Output, lambda message: b"2\n" in message.data)
        lost_at = time.monotonic()
        loses_its_launcher(first)
        await is_waited_at(DOOR)
        waited_at = time.monotonic()
        await asyncio.sleep(0.3)
        alone = time.monotonic() - waited_at

        async def go_on(second: Workers) -> None:
            now = await second.hears(Resumed)
            assert now.workers == (Started(3, pid),) and now.ends == () and now.lost == 0
            assert set(now.streams) == {(3, 1), (3, 2)} and alone < now.alone < time.monotonic() - lost_at
            (tmp_path / "enough").touch()
            assert (await second.hears(Exited)).code == 0
            await second.closed(3)
            before, after = (
                b"".join(message.data for message in each.heard if isinstance(message, Output))
                for each in (first, second)
            )
            *numbers, end = (before + after).decode().split()
            assert numbers == [str(number) for number in range(len(numbers))] and end == "end"

        await take_over(go_on)

    with_lost_agent(work)


# Starts an agent as sshd does, which may live longer than the connection; nothing but the agent holds that.
LIKE_SSHD = f"""\
#!{sys.executable}
import os, subprocess, sys
agent = subprocess.Popen([sys.executable, *sys.argv[1:]])
nowhere = os.open(os.devnull, os.O_RDWR)
os.dup2(nowhere, 0), os.dup2(nowhere, 1)
agent.wait()
"""


def test_what_led_to_the_last_launcher_may_end_after_it(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text(LIKE_SSHD)
    program.chmod(0o755)

    async def run() -> None:
        agent = await AgentClient.start(Host("here", python=str(program)), True, SshOptions())
        await agent.ready()
        agent.tell(Outlive(DOOR, 20))
        first = Workers(agent)
        first.start(3, "import time; time.sleep(1000)")
        pid = (await first.hears(Started)).pid
        loses_its_launcher(first)

        async def go_on(second: Workers) -> None:
            await second.hears(Resumed)
            agent._process.process.kill()
            await agent._process.wait()
            second.start(4, "import os, time; time.sleep(0.3); os.write(1, b'obeyed\\n')")
            assert await second.output(4) == "obeyed\n"
            assert lives(pid)

        await take_over(go_on)
        await agent.close()

    asyncio.run(run())


def test_how_workers_end_without_a_launcher_is_told_to_the_next_one(tmp_path: Path) -> None:
    alone = tmp_path / "alone"

    async def work(first: Workers) -> None:
        first.start(3, WHEN_THERE_IS.format(path=str(alone)) + "print('last words\\n', end=''); raise SystemExit(7)")
        first.start(4, "import time; time.sleep(1000)")
        pid = (await first.hears(Started, lambda message: message.rank == 3)).pid
        await first.hears(Started, lambda message: message.rank == 4)
        loses_its_launcher(first)
        await is_waited_at(DOOR)
        alone.touch()
        await is_reaped(pid)

        async def go_on(second: Workers) -> None:
            now = await second.hears(Resumed)
            assert [(each.rank, each.code) for each in now.ends] == [(3, 7)]
            assert [each.rank for each in now.workers] == [4]
            await second.closed(3)
            assert await second.output(3) == "last words\n"

        await take_over(go_on)

    with_lost_agent(work)


def test_of_too_much_that_is_printed_without_a_launcher_the_latest_is_kept(tmp_path: Path) -> None:
    alone = tmp_path / "alone"

    async def work(first: Workers) -> None:
        first.start(3, WHEN_THERE_IS.format(path=str(alone)) + "print('x' * 3_000_000 + 'end', flush=True)")
        pid = (await first.hears(Started)).pid
        loses_its_launcher(first)
        await is_waited_at(DOOR)
        alone.touch()
        await is_reaped(pid)

        async def go_on(second: Workers) -> None:
            now = await second.hears(Resumed)
            # The last of it may still be in the pipe then, which takes 64 kB.
            assert 1_800_000 < now.lost < 2_100_000
            assert (await second.hears(Output, lambda message: b"end" in message.data)).rank == 3

        await take_over(go_on)

    with_lost_agent(work)


def test_workers_are_ended_when_no_other_launcher_comes_in_time() -> None:
    async def work(first: Workers) -> None:
        first.start(3, FAMILY + "time.sleep(1000)")
        pids = [int(pid) for pid in (await first.output(3)).split()]
        lost_at = time.monotonic()
        loses_its_launcher(first)
        await all_have_ended(pids)
        assert time.monotonic() - lost_at > 1.0

    with_lost_agent(work, seconds=1.0)


def test_an_agent_without_a_launcher_ends_when_it_is_asked_to_go() -> None:
    async def work(first: Workers) -> None:
        first.start(3, FAMILY + "time.sleep(1000)")
        pids = [int(pid) for pid in (await first.output(3)).split()]
        loses_its_launcher(first)
        await is_waited_at(DOOR)
        first.agent._process.process.terminate()
        await all_have_ended(pids)

    with_lost_agent(work)


def test_a_launcher_that_has_been_silent_before_is_not_waited_for() -> None:
    """It may live, have given this host up, and count on the end of its workers."""

    async def work(first: Workers) -> None:
        first.agent.tell(Beat(2.0))
        first.start(3, FAMILY + "time.sleep(1000)")
        pids = [int(pid) for pid in (await first.output(3)).split()]
        await asyncio.sleep(1.5)
        loses_its_launcher(first)
        began = asyncio.get_running_loop().time()
        await all_have_ended(pids)
        assert asyncio.get_running_loop().time() - began < 10

    with_lost_agent(work, seconds=60.0)


def test_an_agent_waits_for_each_launcher_at_another_door() -> None:
    """Who has seen the name of one that was used may be there first."""

    async def work(first: Workers) -> None:
        first.start(3, "import time; time.sleep(1000)")
        await first.hears(Started)
        loses_its_launcher(first)

        async def is_lost_again(second: Workers) -> None:
            await second.hears(Resumed)
            second.agent.tell(Outlive(f"{DOOR}-2", 20.0))
            loses_its_launcher(second)
            with socket.socket(socket.AF_UNIX) as squatter:
                squatter.bind(address_of(DOOR))
                await take_over(goes_on, DOOR, f"{DOOR}-2")

        async def goes_on(third: Workers) -> None:
            assert [each.rank for each in (await third.hears(Resumed)).workers] == [3]

        agent = await AgentClient.start(Host("here"), True, SshOptions(), (DOOR,))
        await is_lost_again(Workers(agent))
        await agent.close()

    with_lost_agent(work)


def test_who_looks_for_the_roster_waits_though_a_launcher_comes_and_is_killed_at_once() -> None:
    async def work(first: Workers) -> None:
        assert first.agent.facts is not None
        first.start(3, "import time; time.sleep(1000)")
        await first.hears(Started)
        loses_its_launcher(first)
        pid = first.agent._process.process.pid
        await is_waited_at(DOOR)
        os.kill(pid, signal.SIGSTOP)
        await visit(DOOR)  # Which is gone when the agent lets it in.
        os.kill(pid, signal.SIGCONT)
        await asyncio.sleep(0.2)
        with (
            socket.create_connection(parse_address(first.agent.facts.roster)),
            socket.create_server(("127.0.0.1", 0)) as roster,
        ):
            await asyncio.sleep(0.2)
            roster.setblocking(False)

            async def go_on(second: Workers) -> None:
                second.agent.relay_to(format_address(*roster.getsockname()))
                reached, _ = await asyncio.wait_for(asyncio.get_running_loop().sock_accept(roster), 20)
                reached.close()

            await take_over(go_on)

    with_lost_agent(work)


async def is_waited_at(door: str) -> None:
    """Wait until an agent waits there."""

    async def look() -> None:
        while f"@farandole-agent-{door}" not in Path("/proc/net/unix").read_text().split():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(look(), 20)


async def visit(door: str) -> None:
    """Be a launcher that is killed when it has found the agent."""
    with socket.socket(socket.AF_UNIX) as visitor:
        visitor.connect(address_of(door))


def test_an_agent_whose_door_is_taken_ends_its_workers() -> None:
    async def work(first: Workers) -> None:
        first.start(3, FAMILY + "time.sleep(1000)")
        pids = [int(pid) for pid in (await first.output(3)).split()]
        with socket.socket(socket.AF_UNIX) as squatter:
            squatter.bind(address_of(DOOR))
            loses_its_launcher(first)
            await all_have_ended(pids)

    with_lost_agent(work)


def test_nobody_takes_over_an_agent_that_is_not_there() -> None:
    async def run() -> None:
        agent = await AgentClient.start(Host("here"), True, SshOptions(), ("nobody", "no one"))
        with pytest.raises(AgentLost, match="there is no agent of this job any more that waits for a launcher"):
            await agent.ready()
        await agent.close()

    asyncio.run(run())


def test_an_agent_does_not_grow_with_the_workers_it_has_had() -> None:
    async def work(workers: Workers) -> None:
        sizes = []
        for worker in range(150):
            workers.agent.tell(Start(worker, ("/bin/echo", "hello"), {WORKER_VARIABLE: str(worker)}, "/", elastic=True))
            await workers.closed(worker)
            await workers.hears(Exited)
            workers.heard.clear()
            pid = workers.agent._process.process.pid
            sizes.append((_resident(pid), len(os.listdir(f"/proc/{pid}/fd"))))
        assert sizes[-1][0] - sizes[30][0] < 512 * 1024
        assert sizes[-1][1] < sizes[30][1] + 5  # It may just be reading in /proc.

    with_agent(work)


def test_what_a_host_says_of_its_being_taken_away_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notice = tmp_path / "notice"
    warned: list[str] = []

    async def work(workers: Workers) -> None:
        async def look(elastic: Elastic) -> str | None:
            return await PreemptionWatch(elastic, os.environ, warned.append).look(workers.agent, str(tmp_path))

        by_file = Elastic(1, None, preemption_file="notice")
        by_command = Elastic(1, None, preemption_command="test -e notice && cat notice")
        assert [await look(by_file), await look(by_command), await look(Elastic(1, None))] == ["", "", ""]
        notice.write_text("soon\n")
        assert [await look(by_file), await look(by_command)] == ["there is a file notice", "soon"]
        assert not warned
        assert await look(Elastic(1, None, preemption_command="no_such_program")) is None
        # Not before: those that end by themselves may take their time on a busy machine.
        monkeypatch.setattr(preemption, "COMMAND_SECONDS", 0.5)
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

        lookout = PreemptionWatch(elastic, os.environ, warned.append)
        watching = asyncio.create_task(lookout.watch(workers.agent, str(tmp_path), tell))
        await asyncio.wait_for(done.wait(), 20)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    with_agent(work)
    assert told == ["soon", ""]
    assert len(warned) == 1


def _resident(pid: int) -> int:
    """Return the bytes of its own that are in memory; pages of files come and go with what else the machine does."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024

"""An agent whose launcher is killed: it keeps its workers, and waits for the next launcher."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from agent_workers import FAMILY, WHEN_THERE_IS, Workers, all_have_ended, lives

from farandole.base.wire.address import format_address, parse_address
from farandole.control.agent.failover_socket import address_of
from farandole.control.agent.protocol import (
    Beat,
    Exited,
    Outlive,
    Output,
    Resumed,
    Started,
)
from farandole.control.launcher.agents.agent_client import AgentClient
from farandole.control.launcher.agents.agent_lost import AgentLost
from farandole.control.launcher.agents.relayed_links import LatestEnd
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.job.ssh_and_ship import SshOptions

SOCKET_NAME = f"test-{os.getpid()}"
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


async def take_over(work: Callable[[Workers], Coroutine[Any, Any, None]], *socket_names: str) -> None:
    """Be the next launcher."""
    agent = await AgentClient.start(Host("here"), True, SshOptions(), socket_names or (SOCKET_NAME,))
    try:
        workers = Workers(agent)
        await work(workers)
        await workers.end()
    finally:
        await agent.close()


def with_lost_agent(work: Callable[[Workers], Coroutine[Any, Any, None]], seconds: float = 20.0) -> None:
    """Do something with an agent that may outlive its launcher for some time, and check that nothing is left of it."""

    async def run() -> None:
        agent = await AgentClient.start(Host("here"), True, SshOptions())
        await agent.ready()
        agent.send(Outlive(SOCKET_NAME, seconds))
        workers = Workers(agent)
        await work(workers)
        assert await asyncio.wait_for(agent._process.wait(), 20) == 0
        await agent.close()

    asyncio.run(run())


def test_next_launcher_takes_over_workers_and_output(tmp_path: Path) -> None:
    async def work(first: Workers) -> None:
        first.start(3, COUNTING.format(path=str(tmp_path / "enough")))
        pid = (await first.hears(Started)).pid
        await first.hears(Output, lambda message: b"2\n" in message.data)
        lost_at = time.monotonic()
        loses_its_launcher(first)
        await is_waited_at(SOCKET_NAME)
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


def test_process_that_led_to_old_launcher_may_end_later(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text(LIKE_SSHD)
    program.chmod(0o755)

    async def run() -> None:
        agent = await AgentClient.start(Host("here", python=str(program)), True, SshOptions())
        await agent.ready()
        agent.send(Outlive(SOCKET_NAME, 20))
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


def test_ends_of_workers_are_reported_to_next_launcher(tmp_path: Path) -> None:
    alone = tmp_path / "alone"

    async def work(first: Workers) -> None:
        first.start(3, WHEN_THERE_IS.format(path=str(alone)) + "print('last words\\n', end=''); raise SystemExit(7)")
        first.start(4, "import time; time.sleep(1000)")
        pid = (await first.hears(Started, lambda message: message.rank == 3)).pid
        await first.hears(Started, lambda message: message.rank == 4)
        loses_its_launcher(first)
        await is_waited_at(SOCKET_NAME)
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


def test_latest_output_without_launcher_is_kept(tmp_path: Path) -> None:
    alone = tmp_path / "alone"

    async def work(first: Workers) -> None:
        first.start(3, WHEN_THERE_IS.format(path=str(alone)) + "print('x' * 3_000_000 + 'end', flush=True)")
        pid = (await first.hears(Started)).pid
        loses_its_launcher(first)
        await is_waited_at(SOCKET_NAME)
        alone.touch()
        await is_reaped(pid)

        async def go_on(second: Workers) -> None:
            now = await second.hears(Resumed)
            # The last of it may still be in the pipe then, which takes 64 kB.
            assert 1_800_000 < now.lost < 2_100_000
            assert (await second.hears(Output, lambda message: b"end" in message.data)).rank == 3

        await take_over(go_on)

    with_lost_agent(work)


def test_workers_are_ended_without_launcher_in_time() -> None:
    async def work(first: Workers) -> None:
        first.start(3, FAMILY + "time.sleep(1000)")
        pids = [int(pid) for pid in (await first.output(3)).split()]
        lost_at = time.monotonic()
        loses_its_launcher(first)
        await all_have_ended(pids)
        assert time.monotonic() - lost_at > 1.0

    with_lost_agent(work, seconds=1.0)


def test_agent_without_launcher_ends_on_sigterm() -> None:
    async def work(first: Workers) -> None:
        first.start(3, FAMILY + "time.sleep(1000)")
        pids = [int(pid) for pid in (await first.output(3)).split()]
        loses_its_launcher(first)
        await is_waited_at(SOCKET_NAME)
        first.agent._process.process.terminate()
        await all_have_ended(pids)

    with_lost_agent(work)


def test_agent_does_not_wait_after_silent_launcher() -> None:
    """It may live, have given this host up, and count on the end of its workers."""

    async def work(first: Workers) -> None:
        first.agent.send(Beat(2.0))
        first.start(3, FAMILY + "time.sleep(1000)")
        pids = [int(pid) for pid in (await first.output(3)).split()]
        await asyncio.sleep(1.5)
        loses_its_launcher(first)
        began = asyncio.get_running_loop().time()
        await all_have_ended(pids)
        assert asyncio.get_running_loop().time() - began < 10

    with_lost_agent(work, seconds=60.0)


def test_agent_waits_on_new_socket_for_each_launcher() -> None:
    """A process that has seen the name of one that was used may be there first."""

    async def work(first: Workers) -> None:
        first.start(3, "import time; time.sleep(1000)")
        await first.hears(Started)
        loses_its_launcher(first)

        async def is_lost_again(second: Workers) -> None:
            await second.hears(Resumed)
            second.agent.send(Outlive(f"{SOCKET_NAME}-2", 20.0))
            loses_its_launcher(second)
            with socket.socket(socket.AF_UNIX) as squatter:
                squatter.bind(address_of(SOCKET_NAME))
                await take_over(goes_on, SOCKET_NAME, f"{SOCKET_NAME}-2")

        async def goes_on(third: Workers) -> None:
            assert [each.rank for each in (await third.hears(Resumed)).workers] == [3]

        agent = await AgentClient.start(Host("here"), True, SshOptions(), (SOCKET_NAME,))
        await is_lost_again(Workers(agent))
        await agent.close()

    with_lost_agent(work)


def test_workers_keep_looking_for_roster_when_next_launcher_is_killed_at_once() -> None:
    async def work(first: Workers) -> None:
        assert first.agent.facts is not None
        first.start(3, "import time; time.sleep(1000)")
        await first.hears(Started)
        loses_its_launcher(first)
        pid = first.agent._process.process.pid
        await is_waited_at(SOCKET_NAME)
        os.kill(pid, signal.SIGSTOP)
        await connect_and_leave(SOCKET_NAME)  # Which is gone when the agent lets it in.
        os.kill(pid, signal.SIGCONT)
        await asyncio.sleep(0.2)
        with (
            socket.create_connection(parse_address(first.agent.facts.roster)),
            socket.create_server(("127.0.0.1", 0)) as roster,
        ):
            await asyncio.sleep(0.2)
            roster.setblocking(False)

            async def go_on(second: Workers) -> None:
                second.agent.relay_to(format_address(*roster.getsockname()), LatestEnd())
                reached, _ = await asyncio.wait_for(asyncio.get_running_loop().sock_accept(roster), 20)
                reached.close()

            await take_over(go_on)

    with_lost_agent(work)


async def is_waited_at(socket_name: str) -> None:
    """Wait until an agent waits there."""

    async def look() -> None:
        while f"@farandole-agent-{socket_name}" not in Path("/proc/net/unix").read_text().split():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(look(), 20)


async def connect_and_leave(socket_name: str) -> None:
    """Be a launcher that is killed when it has found the agent."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(address_of(socket_name))


def test_agent_whose_socket_name_is_taken_ends_its_workers() -> None:
    async def work(first: Workers) -> None:
        first.start(3, FAMILY + "time.sleep(1000)")
        pids = [int(pid) for pid in (await first.output(3)).split()]
        with socket.socket(socket.AF_UNIX) as squatter:
            squatter.bind(address_of(SOCKET_NAME))
            loses_its_launcher(first)
            await all_have_ended(pids)

    with_lost_agent(work)


def test_missing_agent_cannot_be_taken_over() -> None:
    async def run() -> None:
        agent = await AgentClient.start(Host("here"), True, SshOptions(), ("nobody", "no one"))
        with pytest.raises(AgentLost, match="no agent of this job waits for a launcher any more"):
            await agent.ready()
        await agent.close()

    asyncio.run(run())

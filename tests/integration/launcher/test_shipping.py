"""Sending a directory to real agents, and running a worker in it."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from farandole.control.agent.protocol import End, Exited, FromAgent, Output, Start
from farandole.control.launcher.agents.agent_client import AgentClient
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.job.ssh_and_ship import SshOptions
from farandole.control.launcher.ship.file_list import build_manifest
from farandole.control.launcher.ship.send import ship
from farandole.errors import SpecError

SECONDS = 60


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "project"
    (root / "package").mkdir(parents=True)
    (root / "package" / "__init__.py").write_text("")
    (root / "package" / "words.py").write_text("WORDS = 'from the package'\n")
    (root / "noise.bin").write_bytes(os.urandom(3_000_000))
    (root / "train.py").write_text(
        "import os, package.words\n"
        "print(package.words.WORDS, os.path.getsize('noise.bin'))\n"
        "open('result.txt', 'w').write('written')\n"
    )
    return root


async def start(number: int) -> AgentClient:
    agent = await AgentClient.start(Host(f"h{number}"), True, SshOptions())
    await agent.ready()
    return agent


async def run_worker(agent: AgentClient, directory: str) -> bytes:
    """Run the script, end the agent, and return what the script printed."""
    output: list[bytes] = []

    def take(message: FromAgent) -> None:
        if isinstance(message, Output):
            output.append(message.data)
        elif isinstance(message, Exited):
            assert message.code == 0
            agent.send(End(grace=0))

    listening = asyncio.create_task(agent.listen(take))
    agent.send(Start(0, (sys.executable, "train.py"), {}, directory))
    await asyncio.wait_for(listening, SECONDS)
    return b"".join(output)


async def job(project: Path, hosts: int) -> tuple[list[str], list[bytes], tuple[int, int]]:
    """Run the script on some hosts; return where, what it printed, and how much was sent of how much."""
    agents = [await start(number) for number in range(hosts)]
    progress: list[tuple[int, int]] = []
    try:
        sending = ship(build_manifest(str(project)), agents, "job", lambda *each: progress.append(each))
        directories = await asyncio.wait_for(sending, SECONDS)
        output = [await run_worker(agent, directories[agent.host.label]) for agent in agents]
    finally:
        for agent in agents:
            await agent.close()
    return list(directories.values()), output, progress[-1]


def test_workers_run_in_shipped_directory(project: Path) -> None:
    directories, output, (done, total) = asyncio.run(job(project, 2))
    assert output == [b"from the package 3000000\n"] * 2
    assert len(set(directories)) == 2
    for directory in directories:
        assert (Path(directory) / "result.txt").read_text() == "written"
    assert not (project / "result.txt").exists()
    assert done == total >= 3_000_000  # The second agent may find what the first has got.


def test_second_job_receives_only_changes(project: Path) -> None:
    asyncio.run(job(project, 1))
    (project / "package" / "words.py").write_text("WORDS = 'changed'\n")
    _, output, progress = asyncio.run(job(project, 1))
    assert output == [b"changed 3000000\n"]
    assert progress == (18, 18)


@pytest.mark.parametrize("how", ["killed", "ended"])
def test_loss_of_agent_while_it_receives_is_noticed(how: str, project: Path) -> None:
    async def scenario() -> None:
        agents = [await start(number) for number in range(2)]
        try:
            sending = asyncio.create_task(ship(build_manifest(str(project)), agents, "job"))
            await asyncio.sleep(0)
            if how == "killed":
                agents[1].kill()
            else:
                agents[1].send(End(grace=0))
            await asyncio.wait_for(sending, SECONDS)
        finally:
            for agent in agents:
                await agent.close()

    with pytest.raises(SpecError, match=r"the directory could not be sent: h1: .*(SIGKILL|has ended)"):
        asyncio.run(scenario())


def test_host_that_cannot_store_directory_is_named(project: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("not a directory")
    with pytest.raises(SpecError, match=r"the directory could not be sent: h0: .*/cache.*Not a directory"):
        asyncio.run(job(project, 1))

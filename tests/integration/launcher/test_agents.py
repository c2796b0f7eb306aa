"""The launcher's end of faulty agents: shell scripts that are called like ssh."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from waiting import processes_with

from farandole.control.launcher.agents.agent_client import AgentClient
from farandole.control.launcher.agents.agent_lost import AgentLost
from farandole.control.launcher.agents.start_agents import start_agents
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.job.ssh_and_ship import SshOptions

GREETING = "\\nfarandole agent: frames follow\\n"
REAL = 'for last; do :; done\nexec sh -c "$last"\n'


def ssh(tmp_path: Path, script: str) -> SshOptions:
    program = tmp_path / "ssh"
    program.write_text(f"#!/bin/sh\n{script}")
    program.chmod(0o755)
    return SshOptions(program=str(program))


async def reach(options: SshOptions) -> AgentClient:
    agent = await AgentClient.start(Host("h1"), False, options)
    try:
        await agent.ready()
    except AgentLost:
        await agent.close()
        raise
    return agent


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'Permission denied (publickey).' >&2; exit 255", "Permission denied"),
        ("exit 3", "exit code 3"),
        ("kill -9 $$", "SIGKILL"),
        ("exec cat /dev/zero", "does not speak the protocol"),
        (
            "printf '\\nfarandole agent: frames follow\\n\\003\\000\\000\\000abc'; exec sleep 60",
            "does not speak the protocol",
        ),
    ],
)
def test_program_that_is_not_an_agent_is_an_error(tmp_path: Path, script: str, words: str) -> None:
    with pytest.raises(AgentLost, match=words):
        asyncio.run(reach(ssh(tmp_path, script)))


def test_output_of_login_and_ssh_is_ignored(tmp_path: Path) -> None:
    script = "echo Welcome; echo 'Warning: Permanently added h1' >&2\n" + REAL

    async def lose() -> str:
        agent = await reach(ssh(tmp_path, script))
        agent.kill()
        try:
            return str(await agent.lost())
        finally:
            await agent.close()

    assert asyncio.run(lose()) == "the connection to its agent ended (SIGKILL)"


def test_no_process_is_left_when_one_host_is_ready_and_reaching_the_other_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_MARK", str(tmp_path))
    options = ssh(tmp_path, 'case "$*" in *" h2 "*) exec sleep 60;; esac\n' + REAL)
    agents: list[AgentClient] = []
    start = AgentClient.start

    async def noted(*arguments: Any) -> AgentClient:
        agents.append(await start(*arguments))
        return agents[-1]

    monkeypatch.setattr(AgentClient, "start", noted)

    async def interrupt() -> list[int]:
        reaching = asyncio.create_task(start_agents([(Host("h1"), False), (Host("h2"), False)], options))
        while len(agents) < 2:
            await asyncio.sleep(0.01)
        (first,) = [agent for agent in agents if agent.host.label == "h1"]
        await first.ready()
        reaching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reaching
        try:
            return processes_with(f"TEST_MARK={tmp_path}")
        finally:
            for agent in agents:
                await agent.close()

    assert asyncio.run(interrupt()) == []


def test_missing_program_is_an_error() -> None:
    with pytest.raises(AgentLost, match="/nowhere/ssh cannot be started here"):
        asyncio.run(reach(SshOptions(program="/nowhere/ssh")))


def test_silent_agent_is_lost_and_heartbeats_prevent_that(tmp_path: Path) -> None:
    # A busy machine may leave an agent without a processor, but not for as long as this.
    seconds = 3.0

    async def watch() -> str:
        agent = await reach(ssh(tmp_path, REAL))
        begun = time.monotonic()
        watching = asyncio.create_task(agent.watch(seconds))
        while agent.heard_at < begun + 1.2 * seconds:
            assert not watching.done()
            await asyncio.sleep(0.05)
        agent._process.process.send_signal(19)  # SIGSTOP
        try:
            lost = await asyncio.wait_for(agent.lost(), 20)
            assert lost.silent
            return str(lost)
        finally:
            await agent.close()
            await watching

    assert "nothing was heard from it for 3." in asyncio.run(watch())

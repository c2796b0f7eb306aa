"""Sending a directory to real agents, and running a worker in it."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from farandole.agent.messages import (
    Damaged,
    End,
    Ended,
    Exited,
    Lacking,
    NotShipped,
    Offer,
    Output,
    Piece,
    Received,
    Shipped,
    Start,
)
from farandole.launcher.manifest import take_stock
from farandole.launcher.ship import Shipping
from farandole.launcher.supervise import Agent

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


async def listen(host: str, agent: Agent, shipping: Shipping, output: list[bytes]) -> None:
    """Pass on what an agent says, and end it when its worker has."""
    while not isinstance(message := await agent.listen(), Ended):
        if isinstance(message, Lacking | Received | Damaged | Shipped | NotShipped):
            shipping.heard(host, message)
        elif isinstance(message, Output):
            output.append(message.data)
        elif isinstance(message, Exited):
            assert message.code == 0
            agent.tell(End(grace=0))


async def job(project: Path, hosts: int) -> tuple[list[str], bytes, list[tuple[int, int]]]:
    agents = {f"h{number}": await Agent.start() for number in range(hosts)}

    def teller(agent: Agent):  # type: ignore[no-untyped-def]
        return lambda message: agent.tell(message)

    progress: list[tuple[int, int]] = []
    manifest = take_stock(str(project))
    tell = {host: teller(agent) for host, agent in agents.items()}
    shipping = Shipping(manifest, tell, "job", lambda done, total: progress.append((done, total)))
    output: list[bytes] = []
    listeners = [asyncio.create_task(listen(host, agent, shipping, output)) for host, agent in agents.items()]
    try:
        directories = await asyncio.wait_for(shipping.send(), SECONDS)
        for rank, (host, agent) in enumerate(agents.items()):
            agent.tell(Start(rank, (sys.executable, "train.py"), {}, directories[host]))
        await asyncio.wait_for(asyncio.gather(*listeners), SECONDS)
    finally:
        for agent in agents.values():
            agent.kill()
            await agent.exited()
    return list(directories.values()), b"".join(output), progress


def test_workers_run_where_the_directory_was_sent_to(project: Path) -> None:
    directories, output, progress = asyncio.run(job(project, 2))
    assert output == b"from the package 3000000\n" * 2
    assert len(set(directories)) == 2
    for directory in directories:
        assert (Path(directory) / "result.txt").read_text() == "written"
    assert not (project / "result.txt").exists()
    done, total = progress[-1]
    assert done == total >= 3_000_000  # The second agent may find what the first has got.


def test_a_second_job_is_sent_only_what_changed(project: Path) -> None:
    asyncio.run(job(project, 1))
    (project / "package" / "words.py").write_text("WORDS = 'changed'\n")
    _, output, progress = asyncio.run(job(project, 1))
    assert output == b"changed 3000000\n"
    assert progress[-1] == (18, 18)


def test_an_agent_that_receives_can_be_ended(project: Path) -> None:
    async def scenario() -> None:
        agent = await Agent.start()
        manifest = take_stock(str(project))

        def tell(message: Offer | Piece) -> None:
            agent.tell(message)  # type: ignore[arg-type]

        shipping = Shipping(manifest, {"h": tell}, "job")
        sending = asyncio.create_task(shipping.send())
        await asyncio.sleep(0)
        agent.tell(End(grace=0))
        await asyncio.wait_for(listen("h", agent, shipping, []), SECONDS)
        assert await asyncio.wait_for(agent.exited(), SECONDS) == 0
        sending.cancel()

    asyncio.run(scenario())

"""The launcher's end of a branch: what it orders another host's agent to do, and what it makes of the answers."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from farandole.base.wire.frames import Codec, frame
from farandole.control.agent.branch_messages import (
    BranchCredit,
    BranchData,
    BranchEnded,
    BranchReady,
    CloseBranch,
    KillBranch,
    OpenBranch,
    ToBranch,
)
from farandole.control.agent.protocol import GREETING, FromAgent, Stalled
from farandole.control.launcher.agents import branches as module
from farandole.control.launcher.agents.agent_client import AgentClient
from farandole.control.launcher.agents.agent_lost import AgentLost
from farandole.control.launcher.agents.branches import Branch, Branches
from farandole.control.launcher.job.host_list import Host

WINDOW = 1000
TEXT = random.Random(1).randbytes(20 * WINDOW)
HEARD_AT = 17.0


def with_branch(work: Callable[[Branches, Branch, list[ToBranch]], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        sent: list[ToBranch] = []
        branches = Branches("h1", sent.append, lambda: HEARD_AT)
        branch = branches.open(["ssh", "h2"])
        assert sent == [OpenBranch(1, ("ssh", "h2"))]
        sent.clear()
        await work(branches, branch, sent)
        branch.kill()

    asyncio.run(run())


def test_data_is_sent_in_order_and_no_more_than_there_is_credit_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BRANCH_WINDOW", WINDOW)
    monkeypatch.setattr(module, "_CHUNK", 300)

    async def work(branches: Branches, branch: Branch, sent: list[ToBranch]) -> None:
        for start in range(0, len(TEXT), 777):
            branch.input.write(TEXT[start : start + 777])
        branch.input.close()
        arrived, numbers = b"", random.Random(2)
        while sent:
            assert sum(len(each.data) for each in sent if isinstance(each, BranchData)) < WINDOW + 300
            first = sent.pop(0)
            if isinstance(first, CloseBranch):
                assert sent == []
                break
            assert isinstance(first, BranchData)
            arrived += first.data
            part = numbers.randrange(len(first.data))
            for count in (part, len(first.data) - part):
                branches.handle(BranchCredit(1, count))
        assert arrived == TEXT
        branches.handle(BranchCredit(1, 0))
        assert sent == []

    with_branch(work)


def test_credit_is_given_for_data_that_was_read_only() -> None:
    async def work(branches: Branches, branch: Branch, sent: list[ToBranch]) -> None:
        branches.handle(BranchData(1, b"x" * 100))
        assert sent == [BranchCredit(1, 100)]
        many = b"y" * (1 << 18)
        branches.handle(BranchData(1, many))
        assert len(sent) == 1
        assert await branch.output.readexactly(100 + len(many)) == b"x" * 100 + many
        assert sent[1:] == [BranchCredit(1, len(many))]

    with_branch(work)


def test_end_of_branch_tells_its_exit_code_and_last_lines() -> None:
    async def work(branches: Branches, branch: Branch, sent: list[ToBranch]) -> None:
        branch.is_ready()
        branches.handle(BranchData(1, b"last"))
        branches.handle(BranchEnded(1, 255, "Connection closed"))
        assert await branch.output.read() == b"last"
        assert (await branch.wait(), branch.said(), branch.loss()) == (255, "Connection closed", None)
        branch.input.close()
        await branch.input.wait_closed()
        branch.kill()
        branches.handle(BranchEnded(1, 0, ""))
        assert sent == [BranchReady(1), BranchCredit(1, 4)]

    with_branch(work)


def test_killed_branch_is_over_although_its_host_does_not_answer() -> None:
    async def work(branches: Branches, branch: Branch, sent: list[ToBranch]) -> None:
        branch.kill()
        branch.input.write(b"too late")
        branches.handle(BranchData(1, b"too late"))
        branches.handle(BranchCredit(1, 3))
        assert await branch.output.read() == b""
        assert (sent, await branch.wait()) == ([KillBranch(1)], None)
        branches.handle(BranchEnded(1, -9, ""))

    with_branch(work)


def test_loss_of_a_host_ends_its_branches_and_those_that_are_opened_later() -> None:
    async def work(branches: Branches, branch: Branch, sent: list[ToBranch]) -> None:
        branches.lost(AgentLost("nothing was heard from it", silent_since=3.0))
        branches.lost(AgentLost("it has ended"))
        later = branches.open(["ssh", "h3"])
        for each in (branch, later):
            assert await each.output.read() == b""
            loss = each.loss()
            assert loss is not None and loss.silent
            assert str(loss) == "the connection to its agent leads through host h1, which is lost"
        assert sent == []

    with_branch(work)


class Inner:
    """An agent, and the agent of a host behind it, with which a test speaks for both hosts."""

    def __init__(self) -> None:
        self.outer = AgentClient(Host("h1"), False, Pipe())
        self.behind = AgentClient(Host("h2"), False, self.outer.branches.open(["ssh", "h2"]))
        self.hears(GREETING)
        self.hears_behind(GREETING)

    def hears(self, data: bytes) -> None:
        """Let the launcher hear something from h1."""
        self.outer._process.output.feed_data(data)

    def hears_behind(self, data: bytes) -> None:
        """Let the launcher hear something from h2."""
        self.hears(message(BranchData(1, data)))

    async def close(self) -> None:
        await asyncio.gather(self.behind.close(), self.outer.close())


class Pipe(Branch):
    """A link to an agent that never answers."""

    def __init__(self) -> None:
        super().__init__(0, lambda order: None, time.monotonic)


def message(content: FromAgent) -> bytes:
    codec: Codec[FromAgent] = Codec(FromAgent)
    return frame(codec.encode(content))


def test_silence_of_a_host_is_not_taken_for_silence_of_those_behind_it() -> None:
    async def watch() -> tuple[AgentLost, AgentLost]:
        inner = Inner()
        inner.hears_behind(message(Stalled(0, False)))
        await asyncio.sleep(0)
        watching = [asyncio.create_task(agent.watch(0.6)) for agent in (inner.behind, inner.outer)]
        try:
            behind = await asyncio.wait_for(inner.behind.lost(), 60)
            return await asyncio.wait_for(inner.outer.lost(), 60), behind
        finally:
            await inner.close()
            await asyncio.gather(*watching)

    outer, behind = asyncio.run(watch())
    assert "nothing was heard" in str(outer)
    assert str(behind) == "the connection to its agent leads through host h1, which is lost"
    assert outer.silent and behind.silent and outer.at < behind.at


def test_silent_host_is_lost_while_the_host_on_the_way_to_it_speaks() -> None:
    async def watch() -> AgentLost:
        inner = Inner()
        watching = [asyncio.create_task(agent.watch(0.6)) for agent in (inner.behind, inner.outer)]
        try:
            lost = asyncio.create_task(inner.behind.lost())
            while not lost.done():
                inner.hears(message(Stalled(0, False)))
                await asyncio.sleep(0.05)
            assert inner.outer._lost is None
            return await lost
        finally:
            await inner.close()
            await asyncio.gather(*watching)

    assert "nothing was heard from it for " in str(asyncio.run(watch()))

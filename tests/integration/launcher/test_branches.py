"""The agent's end of a branch, with real processes; the test is the launcher."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator

import pytest
from agent_workers import lives
from waiting import until

from farandole.control.agent import branches as module
from farandole.control.agent.branch_messages import (
    BranchCredit,
    BranchData,
    BranchEnded,
    BranchReady,
    CloseBranch,
    FromBranch,
    KillBranch,
    OpenBranch,
)
from farandole.control.agent.branches import Branches
from farandole.control.agent.event_loop import Loop
from farandole.control.agent.process_tree import ProcessTree

WINDOW = 10_000
CHUNK = 3000
TEXT = random.Random(1).randbytes(50 * WINDOW)


class OneBranch:
    """The branches of an agent whose loop the test turns, and what it says about the only branch."""

    def __init__(self, *command: str) -> None:
        self.loop = Loop()
        self.data = b""
        self.credit = 0
        self.end: BranchEnded | None = None
        self.branches = Branches(self.loop, self.hear)
        self.branches.carry_out(OpenBranch(1, command))

    def hear(self, message: FromBranch) -> None:
        assert self.end is None
        if isinstance(message, BranchData):
            self.data += message.data
        elif isinstance(message, BranchCredit):
            self.credit += message.count
        else:
            self.end = message

    def turn_until(self, condition: Callable[[], object], what: str) -> None:
        def turned() -> bool:
            self.loop.turn(0.01)
            self.reap()
            return bool(condition())

        until(turned, what)

    def ends(self) -> BranchEnded:
        self.turn_until(lambda: self.end, "the branch ends")
        assert self.end is not None and not self.branches.are_open
        return self.end

    def reap(self) -> None:
        for pid in self.processes():
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self.branches.ended(pid, os.waitstatus_to_exitcode(status))

    def processes(self) -> list[int]:
        """Return the live or dead child that is the branch's process."""
        return [branch.pid for branch in self.branches._branches.values() if branch.code is None]


Begin = Callable[..., OneBranch]


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Return a function that lets an agent open a branch with a command."""
    begun: list[OneBranch] = []

    def begin(*command: str) -> OneBranch:
        begun.append(OneBranch(*command))
        return begun[-1]

    yield begin
    for each in begun:
        left = each.processes()
        each.branches.cut()
        for pid in left:
            os.waitpid(pid, 0)


def test_bytes_pass_in_order_and_only_with_credit(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BRANCH_WINDOW", WINDOW)
    monkeypatch.setattr(module, "_CHUNK", CHUNK)
    branch = begin("cat")
    sent, taken, numbers = 0, 0, random.Random(2)

    def step() -> bool:
        nonlocal sent, taken
        piece = TEXT[sent : branch.credit + WINDOW]
        sent += len(piece)
        branch.branches.carry_out(BranchData(1, piece))
        ahead = len(branch.data) - taken
        assert ahead < WINDOW + CHUNK
        count = numbers.randint(0, ahead)
        taken += count
        branch.branches.carry_out(BranchCredit(1, count))
        return len(branch.data) == len(TEXT)

    branch.turn_until(step, "all bytes come back")
    assert branch.data == TEXT
    branch.branches.carry_out(CloseBranch(1))
    assert branch.ends() == BranchEnded(1, 0, "")


def test_input_is_closed_after_the_bytes_that_were_sent_before(begin: Begin) -> None:
    branch = begin("sh", "-c", "sleep 0.1; wc -c; exit 3")
    branch.branches.carry_out(BranchData(1, TEXT))
    branch.branches.carry_out(CloseBranch(1))
    assert (branch.ends(), branch.data.strip()) == (BranchEnded(1, 3, ""), b"%d" % len(TEXT))


def test_output_of_ended_process_is_passed_on_as_credit_comes(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process has the pipe open, as one that ssh has left in the background may have."""
    monkeypatch.setattr(module, "BRANCH_WINDOW", WINDOW)
    monkeypatch.setattr(module, "_CHUNK", WINDOW)
    branch = begin(
        "sh", "-c", "sleep 1000 <&- 2>&- & echo $! >&2; head -c 8000 /dev/zero; sleep 0.1; head -c 17000 /dev/zero"
    )
    branch.turn_until(lambda: not branch.processes() and len(branch.data) >= WINDOW, "its process has ended")
    taken = 0
    while (passed := len(branch.data)) < 25_000:
        # The last read may take more than credit allows, by less than a chunk.
        assert passed - taken < 2 * WINDOW and branch.end is None
        branch.branches.carry_out(BranchCredit(1, passed - taken))
        branch.turn_until(lambda before=passed: len(branch.data) > before, "more of it is passed on")
        taken = passed
    branch.branches.carry_out(BranchCredit(1, passed - taken))
    os.kill(int(branch.ends().said), signal.SIGKILL)


def test_killed_branch_ends_although_its_output_has_no_credit(begin: Begin) -> None:
    branch = begin("cat", "/dev/zero")
    branch.turn_until(lambda: len(branch.data) >= module.BRANCH_WINDOW, "all credit is used up")
    branch.branches.carry_out(KillBranch(1))
    assert branch.ends() == BranchEnded(1, -signal.SIGKILL, "")


def test_last_words_are_those_since_the_agent_was_ready(begin: Begin) -> None:
    branch = begin("sh", "-c", "echo warning >&2; echo ready; read line; echo lost >&2; exit 255")
    branch.turn_until(lambda: branch.data == b"ready\n", "it is ready")
    branch.branches.carry_out(BranchReady(1))
    branch.branches.carry_out(BranchData(1, b"go on\n"))
    assert branch.ends() == BranchEnded(1, 255, "lost\n")


def test_missing_program_is_an_end_with_the_reason(begin: Begin) -> None:
    branch = begin("/nowhere/ssh", "h2")
    assert branch.end is not None and branch.end.code is None
    assert branch.end.said.startswith("/nowhere/ssh cannot be started there: ")
    assert not branch.branches.are_open


def test_cut_branches_are_killed_and_belong_to_nobody(begin: Begin) -> None:
    branch = begin("sleep", "1000")
    (pid,) = branch.processes()
    assert branch.branches.processes(ProcessTree()) == {pid}
    branch.branches.cut()
    assert branch.branches.processes(ProcessTree()) == set()
    until(lambda: not lives(pid), "its process is dead")
    os.waitpid(pid, 0)

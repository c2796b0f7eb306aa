"""The messages about branches: processes such as ssh, by which an agent reaches the agents of other hosts.

The launcher's end is `farandole.control.launcher.agents.branches`, the agent's end `farandole.control.agent.branches`.
Both directions are under flow control: `BranchCredit` allows more bytes.
"""

from __future__ import annotations

import msgspec

BRANCH_WINDOW = 1024 * 1024
"""Maximum number of bytes in transit in each direction: many, because a branch may carry files to many hosts."""


class OpenBranch(msgspec.Struct, frozen=True, tag="open-branch"):
    """Start a process that leads to the agent of another host, such as ssh. Answered by `BranchEnded` at its end."""

    branch: int
    command: tuple[str, ...]


class BranchData(msgspec.Struct, frozen=True, tag="branch-data"):
    """Data for the standard input of a branch's process, or from its standard output. Sent by both sides."""

    branch: int
    data: bytes


class BranchCredit(msgspec.Struct, frozen=True, tag="branch-credit"):
    """This many bytes of a branch were passed on, so as many more may follow. Sent by both sides."""

    branch: int
    count: int


class BranchReady(msgspec.Struct, frozen=True, tag="branch-ready"):
    """The agent at the end of a branch is ready: earlier lines on standard error cannot explain the branch's end."""

    branch: int


class CloseBranch(msgspec.Struct, frozen=True, tag="close-branch"):
    """Close the standard input of a branch's process, once everything was passed on."""

    branch: int


class KillBranch(msgspec.Struct, frozen=True, tag="kill-branch"):
    """Kill the process of a branch."""

    branch: int


class BranchEnded(msgspec.Struct, frozen=True, tag="branch-ended"):
    """The process of a branch ended, and its output was passed on."""

    branch: int
    code: int | None
    """Exit code, or minus the number of the signal that ended it; None: it could not be started."""
    said: str
    """Its last lines on standard error since `BranchReady`, or why it could not be started."""


ToBranch = OpenBranch | BranchData | BranchCredit | BranchReady | CloseBranch | KillBranch

FromBranch = BranchData | BranchCredit | BranchEnded

"""Whether a host is about to be taken away, as clouds do with spot instances: a file there, or a command, says so.

Each host's agent runs a command every few seconds and says how it ended; looking for a file is such a command too, so
that a file system that hangs holds up no agent. Exit code 0 is the notice, 1 is none, and everything else no answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from farandole.control.agent.protocol import Task, TaskEnded
from farandole.control.launcher.agents.agent_client import AgentClient
from farandole.control.launcher.agents.agent_lost import AgentLost
from farandole.control.launcher.failure.record import signal_name
from farandole.control.launcher.job.elastic import Elastic
from farandole.control.launcher.plan.environment import inherited_elsewhere

# A command that has not ended after so many seconds is killed.
COMMAND_SECONDS = 10.0
# An agent may take so much longer to say so.
ANSWER_SECONDS = 10.0
_LONGEST_REASON = 200
_NOTICE, _NO_NOTICE = 0, 1


@dataclass(frozen=True)
class PreemptionCheck:
    """How a host is asked.

    Attributes:
        command: that is run there.
        name: what people call it.
        reason: why the host is about to be taken away, if the command says no more than that it is.
    """

    command: tuple[str, ...]
    name: str
    reason: str


@dataclass(frozen=True)
class Finding:
    """What came of asking once.

    Attributes:
        notice: why the host is about to be taken away; "" when it is not.
        trouble: why that cannot be known; "" when it is known.
    """

    notice: str = ""
    trouble: str = ""


def check_of(elastic: Elastic) -> PreemptionCheck | None:
    """Return how hosts are asked; None when the user wants no looking."""
    if elastic.preemption_file:
        path = elastic.preemption_file
        command = ("/bin/sh", "-c", 'test -e "$1"', "sh", path)
        return PreemptionCheck(command, f"the look for {path}", f"there is a file {path}")
    if elastic.preemption_command:
        name = "--preemption-command"
        return PreemptionCheck(("/bin/sh", "-c", elastic.preemption_command), name, f"{name} says so")
    return None


def understand(check: PreemptionCheck, code: int, output: bytes) -> Finding:
    """Return what a command says that ended with this code and wrote this.

    Example:
        >>> check = PreemptionCheck(("check",), "--preemption-command", "--preemption-command says so")
        >>> understand(check, 0, b"terminate at 12:00\\n").notice
        'terminate at 12:00'
        >>> understand(check, 22, b"curl: (22) 403\\n").trouble
        '--preemption-command ended with code 22 (curl: (22) 403)'
    """
    lines = output.decode("utf-8", "replace").strip().splitlines()
    if code == _NOTICE:
        return Finding(notice=lines[0].strip()[:_LONGEST_REASON] if lines else check.reason)
    if code == _NO_NOTICE:
        return Finding()
    how = (
        f"ended with code {code}" if code > 0 else f"was killed by {signal_name(-code)} (it has {COMMAND_SECONDS:g} s)"
    )
    said = f" ({lines[-1].strip()[:_LONGEST_REASON]})" if lines else ""
    return Finding(trouble=f"{check.name} {how}{said}")


class PreemptionWatch:
    """Asks the hosts of a job.

    Args:
        elastic: what the user wants.
        inherited: the launcher's environment, which commands get as workers do.
        warn: tells the user.
    """

    def __init__(self, elastic: Elastic, inherited: Mapping[str, str], warn: Callable[[str], None]) -> None:
        self._check = check_of(elastic)
        self._seconds = elastic.preemption_interval
        self._inherited = inherited
        self._warn = warn
        self._warned: set[str] = set()
        """Hosts of which it was said that they give no answer."""

    async def look(self, agent: AgentClient, directory: str) -> str | None:
        """Return why a host is about to be taken away; "" when it is not, None when that cannot be known.

        Args:
            agent: of the host.
            directory: in which the command runs there.
        """
        if self._check is None:
            return ""
        finding = await self._ask(self._check, agent, directory)
        if finding is None:
            return None
        if finding.trouble:
            self._tell_trouble(agent.host.label, finding.trouble)
            return None
        return finding.notice

    async def watch(self, agent: AgentClient, directory: str, tell: Callable[[str], None]) -> None:
        """Look again and again, until that is cancelled; `tell` is called with what is known, and when that changes."""
        told = None
        while self._check is not None:
            await asyncio.sleep(self._seconds)
            notice = await self.look(agent, directory)
            if notice is not None and notice != told:
                told = notice
                tell(notice)

    async def _ask(self, check: PreemptionCheck, agent: AgentClient, directory: str) -> Finding | None:
        environment = dict(self._inherited) if agent.local else inherited_elsewhere(self._inherited)
        try:
            answer = await agent.ask(
                lambda number: Task(number, check.command, environment, directory, b"", COMMAND_SECONDS),
                COMMAND_SECONDS + ANSWER_SECONDS,
            )
        except AgentLost:
            return None  # What listens to the agent says what becomes of the host.
        assert isinstance(answer, TaskEnded)
        return understand(check, answer.code, answer.output)

    def _tell_trouble(self, label: str, trouble: str) -> None:
        if label in self._warned:
            return
        self._warned.add(label)
        known = "it is not known whether the host is about to be taken away (0: it is, 1: it is not)"
        self._warn(f"warning: on host {label}, {trouble}; {known}; the job goes on, and asks every {self._seconds:g} s")

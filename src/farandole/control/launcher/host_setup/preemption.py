"""Detects that a host is about to be reclaimed, such as a cloud's spot instance, by a file on it or a command.

Each host's agent runs a command every few seconds and reports how it ended. A file is also checked by a command, so
that a hanging file system does not block an agent. Exit code 0 is a notice, 1 is none, and anything else is no answer.
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

# Seconds after which a command that has not ended is killed.
COMMAND_SECONDS = 10.0
# Further seconds that an agent may take to report that.
ANSWER_SECONDS = 10.0
_LONGEST_REASON = 200
_NOTICE, _NO_NOTICE = 0, 1


@dataclass(frozen=True)
class PreemptionCheck:
    """The way to check a host for a preemption notice.

    Attributes:
        command: the command to run on the host.
        name: its name in messages.
        reason: the reason to give for the preemption if the command prints none.
    """

    command: tuple[str, ...]
    name: str
    reason: str


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        notice: why the host is about to be reclaimed; "" if it is not.
        trouble: why that is not known; "" if it is known.
    """

    notice: str = ""
    trouble: str = ""


def check_of(elastic: Elastic) -> PreemptionCheck | None:
    """Return the way to check hosts; None if the user has not asked for checks."""
    if elastic.preemption_file:
        path = elastic.preemption_file
        command = ("/bin/sh", "-c", 'test -e "$1"', "sh", path)
        return PreemptionCheck(command, f"the check for {path}", f"the file {path} exists")
    if elastic.preemption_command:
        name = "--preemption-command"
        return PreemptionCheck(("/bin/sh", "-c", elastic.preemption_command), name, f"{name} says so")
    return None


def understand(check: PreemptionCheck, code: int, output: bytes) -> Finding:
    """Interpret the exit code and the output of the command.

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
        f"ended with code {code}"
        if code > 0
        else f"was killed by {signal_name(-code)} (it may take {COMMAND_SECONDS:g} s)"
    )
    said = f" ({lines[-1].strip()[:_LONGEST_REASON]})" if lines else ""
    return Finding(trouble=f"{check.name} {how}{said}")


class PreemptionWatch:
    """Checks the hosts of a job.

    Args:
        elastic: the limits of the job, as the user wants them.
        inherited: the launcher's environment, which commands get as workers do.
        warn: prints a warning to the user.
    """

    def __init__(self, elastic: Elastic, inherited: Mapping[str, str], warn: Callable[[str], None]) -> None:
        self._check = check_of(elastic)
        self._seconds = elastic.preemption_interval
        self._inherited = inherited
        self._warn = warn
        self._warned: set[str] = set()
        """Hosts about which the user was warned that their checks fail."""

    async def look(self, agent: AgentClient, directory: str) -> str | None:
        """Return why a host is about to be reclaimed; "" if it is not, None if that is not known.

        Args:
            agent: the agent of the host.
            directory: the directory in which the command runs there.
        """
        if self._check is None:
            return ""
        finding = await self._ask(self._check, agent, directory)
        if finding is None:
            return None
        if finding.trouble:
            self._report_trouble(agent.host.label, finding.trouble)
            return None
        return finding.notice

    async def watch(self, agent: AgentClient, directory: str, tell: Callable[[str], None]) -> None:
        """Check repeatedly until cancelled; call `tell` with the first result, and with each change of it."""
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
            return None  # The listener of the agent decides what happens to the host.
        assert isinstance(answer, TaskEnded)
        return understand(check, answer.code, answer.output)

    def _report_trouble(self, label: str, trouble: str) -> None:
        if label in self._warned:
            return
        self._warned.add(label)
        known = "it is not known whether the host will be reclaimed (exit code 0: yes, 1: no)"
        self._warn(
            f"warning: on host {label}, {trouble}; {known}; the job continues and checks every {self._seconds:g} s"
        )

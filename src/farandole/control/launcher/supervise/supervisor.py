"""Supervises a job from its first worker to its end: one supervisor for jobs of fixed size and for elastic ones.

Everything here runs in one asyncio loop, the roster too. The console's threads only call back through the loop.

The supervisor wires the parts of a running job together and ends the job: SIGTERM, `GRACE_SECONDS`, SIGKILL. What
follows from what happens to hosts and workers is decided by the job's policy (`FixedPolicy`, `ElasticPolicy`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable

from farandole.base.wire.rendezvous import Failure, Measures, Progress
from farandole.control.agent.protocol import End, SendSignal
from farandole.control.launcher.failure.record import signal_name
from farandole.control.launcher.host_setup.host_setup import HostSetup
from farandole.control.launcher.job.spec import LaunchSpec
from farandole.control.launcher.output.console import Console
from farandole.control.launcher.output.status_line import StatusLine
from farandole.control.launcher.plan.model import HostPlan
from farandole.control.launcher.supervise.background import Background
from farandole.control.launcher.supervise.ending import GRACE_SECONDS, Ending
from farandole.control.launcher.supervise.job_history import JobHistory
from farandole.control.launcher.supervise.job_hosts import JobHosts
from farandole.control.launcher.supervise.job_policy import JobPolicy
from farandole.control.launcher.supervise.outcome import Outcome, Verdict, outcome_of
from farandole.control.launcher.supervise.worker_control import WorkerControl
from farandole.control.launcher.supervise.workers import Workers
from farandole.control.launcher.wording import count
from farandole.control.roster.service import RosterService

MOST_MEASURES = 64
"""Configurations of which the latest measurement is kept."""


class Supervisor:
    """One job from start to end.

    Attributes:
        workers: of the job.
        service: the roster.
        hosts: of the job, those that can start workers.
        control: the way to the workers.
        status: the line about the job on a terminal.
        history: what has happened to the job.
        background: tasks of the job.
        ending: whether and since when the job is being ended.
        verdict: why it is being ended.

    Args:
        spec: what the user wants.
        policy: decides what follows from what happens.
        workers: of the job; none yet.
        service: the roster.
        setup: makes hosts ready while the job runs; None: all were ready before.
        console: where output and words to the user go.
        log: takes lines that are printed with --verbose only.
        hint: what to do about what the worker that failed first has said; "" if that is not known better than from
            the failure alone.
        outlive: for how many seconds agents wait for another launcher when this one is killed; 0: there will be none.
    """

    def __init__(
        self,
        spec: LaunchSpec,
        policy: JobPolicy,
        workers: Workers,
        service: RosterService,
        setup: HostSetup | None,
        console: Console,
        log: Callable[[str], None],
        hint: Callable[[HostPlan, str], str],
        outlive: float = 0.0,
    ) -> None:
        self.workers = workers
        self.service = service
        self.status = StatusLine(console, [])
        self.history = JobHistory()
        self.background = Background()
        self.ending = Ending()
        self.verdict = Verdict()
        self.control = WorkerControl(workers, service, self.status, policy.worker_over, self.background, log)
        self.hosts = JobHosts(spec, setup, self.control, policy, self.ending, self.background, log, outlive)
        self._spec = spec
        self._policy = policy
        self._measures: dict[tuple[tuple[str, ...], int, float], Measures] = {}
        self._console = console
        self._hint = hint
        self._over = asyncio.Event()

    # --- called from outside, in the loop's thread --------------------------------------------------------------

    def stop(self, code: int, why: str) -> None:
        """End the job because the user wants it; a second time: at once. `code` becomes the exit code."""
        said = f"farandole: {why}: ending {count(self._policy.size, 'worker')}; once more to kill them"
        if self._policy.postpones_end(code):
            self._console.say(said)
        elif self.ending.stop_code is None:
            self.ending.stop_code = code
            self._console.say(said)
            self.end(GRACE_SECONDS if self._spec.end_grace is None else self._spec.end_grace)
        else:
            self.end(0)

    def send_signal(self, number: int) -> None:
        """Send all workers a signal, which means what they make of it."""
        for agent in self.hosts.agents():
            agent.tell(SendSignal(number))

    def kill(self, rank: int, number: int) -> str:
        """Send one worker a signal; say what follows from it.

        Raises:
            SpecError: there is no such worker.
        """
        worker = self.workers.of_rank(rank)
        worker.job_host.agent.tell(SendSignal(number, worker.number))
        named = f"rank {rank} on {worker.host} gets {signal_name(number)}"
        follows = self._policy.follows_a_loss if number == signal.SIGKILL else "what it does then is up to its program"
        return f"{named}; {follows}"

    def pause(self) -> None:
        """Let the agents know that the launcher is about to be stopped, so that they do not miss it."""
        for agent in self.hosts.agents():
            if not agent.local:
                agent.pause()

    def failure_reported(self, worker: int, failure: Failure) -> None:
        """Record what a worker says about its own failure."""
        if worker in self.workers.by_number:
            self.workers.by_number[worker].reported(failure)

    def progress_reported(self, worker: int, progress: Progress) -> None:
        """Record how a worker gets on."""
        self.status.progress(worker, progress.steps, progress.waited, time.monotonic())
        self.history.progress(worker, self.workers, progress)
        self._policy.progressed(progress)

    def measured(self, measures: Measures) -> None:
        """Record what the training measures: of each configuration the latest, the latest of all at the end."""
        configuration = (measures.on or ("",) * measures.hosts, measures.workers, measures.local)
        self._measures.pop(configuration, None)
        self._measures[configuration] = measures
        if len(self._measures) > MOST_MEASURES:
            # The hosts with the most go first: hosts on which it was once say how fast their type is.
            most, _ = Counter(hosts for hosts, _, _ in self._measures).most_common(1)[0]
            del self._measures[next(key for key in self._measures if key[0] == most)]

    @property
    def timeline(self) -> str:
        """The file in which rank 0 keeps the job's timeline, on its host; "" when none is kept from the beginning."""
        path: str = self._spec.settings.get("timeline") or ""
        return "" if path.upper() in ("", "DYNAMIC") else os.path.abspath(path)

    @property
    def measures(self) -> tuple[Measures, ...]:
        """What the training has measured, the latest at the end."""
        return tuple(self._measures.values())

    async def run(self) -> Outcome:
        """Begin the job, and return when nothing of it is left.

        Raises:
            SpecError: it cannot begin; nothing was started.
        """
        try:
            await self._policy.begin(self)
            await self._over.wait()
            await self.hosts.close()
        finally:
            self.status.close()
            self._policy.close()
            await self.background.end()
        for survivor in self.hosts.survivors:
            self._console.say(f"warning: {survivor} survived SIGKILL; see there: ps -o pid,stat,cmd PID")
        return self._outcome()

    # --- ending, as the policy wants it --------------------------------------------------------------------------

    def end(self, grace: float, verdict: Verdict | None = None) -> None:
        """End the job: all that still lives gets SIGTERM, and SIGKILL after so many seconds.

        Args:
            grace: these seconds; when the job is being ended already, they can only become fewer.
            verdict: why, if not because all that was to be done is done.
        """
        if verdict is not None:
            self.verdict = verdict
        notice = 0.0
        if self.ending.begin(grace):
            self._policy.end_begins()
            self.background.spawn(self.ending.watch(self.hosts.agents, self.workers.flow))
            notice = self._policy.notice_seconds if grace else 0.0
        if notice:
            asyncio.get_running_loop().call_later(notice, self.end_agents, grace)
        else:
            self.end_agents(grace)
        self._over.set()

    def end_agents(self, grace: float) -> None:
        """Have all agents end their workers, and then themselves."""
        for agent in self.hosts.agents():
            agent.tell(End(grace))

    def _outcome(self) -> Outcome:
        if self.ending.stop_code is not None:
            return Outcome(self.ending.stop_code)
        assert self.ending.since is not None
        results = self.service.results
        outcome, trouble = outcome_of(self._spec, self.verdict, self.workers, self.ending.since, results, self._hint)
        if trouble:
            self._console.say(f"warning: {trouble}")
        return outcome

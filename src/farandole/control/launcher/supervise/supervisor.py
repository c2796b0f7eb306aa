"""Supervises a job from its first worker to its end: one supervisor for jobs of fixed size and for elastic ones.

Everything here runs in one asyncio loop, including the roster. The console's threads only call back through the loop.

The supervisor owns the only state of the job. Everything that happens to hosts and workers becomes an event;
`slots.decide` decides, and the supervisor carries the actions out; events that they cause are queued.
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence

from farandole.base.wire.frames import FRAME_LIMIT, LARGEST_FRAME
from farandole.base.wire.rendezvous import Failure, Measures, Progress
from farandole.control.agent.protocol import End as EndAgent
from farandole.control.agent.protocol import SendSignal
from farandole.control.launcher.background import Background
from farandole.control.launcher.failure.failure_text import as_shell
from farandole.control.launcher.failure.record import how_it_ended, signal_name
from farandole.control.launcher.host_setup.host_setup import HostSetup
from farandole.control.launcher.output.status_line import StatusLine
from farandole.control.launcher.plan.model import HostPlan
from farandole.control.launcher.slots import job_events as events
from farandole.control.launcher.slots.job_events import Action, Event
from farandole.control.launcher.slots.job_state import JobState, expected_size, workers_by_host
from farandole.control.launcher.slots.phrases import follows_a_loss
from farandole.control.launcher.supervise.decisions import Decisions
from farandole.control.launcher.supervise.ending import watch_end
from farandole.control.launcher.supervise.failover_files import FailoverStore
from farandole.control.launcher.supervise.failover_state import FailoverWriter, LauncherFacts
from farandole.control.launcher.supervise.job_history import JobHistory
from farandole.control.launcher.supervise.job_hosts import JobHosts
from farandole.control.launcher.supervise.job_measures import JobMeasures
from farandole.control.launcher.supervise.launch_context import LaunchContext
from farandole.control.launcher.supervise.messages import Messages
from farandole.control.launcher.supervise.outcome import JobOutcome, outcome_of
from farandole.control.launcher.supervise.witnesses import Witnesses
from farandole.control.launcher.supervise.worker_control import WorkerControl
from farandole.control.launcher.supervise.workers import Worker, Workers
from farandole.control.roster import fixed
from farandole.control.roster.events import Announce, Evict, Hold, Left, LeftTogether
from farandole.control.roster.service import Report, RosterService

# Seconds between the announcement of the end and SIGTERM, which has another meaning while an elastic job runs.
NOTICE_SECONDS = 0.05
_FAREWELLS = Left | LeftTogether | events.WorkerEnded | events.EndedTogether


class Supervisor:
    """One job from start to end.

    Attributes:
        decisions: holds the state of the job, and decides.
        workers: the worker processes and their output.
        service: the workers' side of the roster.
        hosts: the hosts of the job.
        status: the line about the job on a terminal.
        history: the history of the job.
        messages: prints messages about an elastic job.
        failover: writes the facts that a successor needs.
        measures: the measurements of the training.
        background: the background tasks of the job.
        holds_end: whether the end of the job is delayed because not all of its agents are known yet.
        has_taken_over: whether this launcher has taken over the hosts of another launcher.

    Args:
        context: the context of the launch.
        state: the initial state of the job, or the state that another launcher has left.
        secret: the secret that workers must prove to have.
        setup: prepares hosts while the job runs; None if all were ready before.
        store: the storage of the facts that the successor of an elastic job's launcher needs; None for none.
    """

    def __init__(
        self,
        context: LaunchContext,
        state: JobState,
        secret: bytes,
        setup: HostSetup | None = None,
        store: FailoverStore | None = None,
    ) -> None:
        spec, console = context.spec, context.console
        self.decisions = Decisions(state, self._decided, context.log)
        self.holds_end = self.has_taken_over = False
        self._context = context
        ranks = state.roster.size if isinstance(state.roster, fixed.FixedState) else None
        self.workers = Workers(spec, console, ranks)
        self.service = RosterService(
            state.roster,
            secret,
            happened=self.happened,
            reported=self._reported,
            log=context.log,
            call=context.call,
            frame_limit=FRAME_LIMIT if context.call is None else LARGEST_FRAME,
        )
        # In a job of fixed size, workers that have ended are still counted.
        self.status = StatusLine(console, lambda: workers_by_host(self.state if self._elastic else state))
        self.history = JobHistory()
        self.messages = Messages(console, self.workers, lambda: self.state)
        self.background = Background()
        self.failover = FailoverWriter(store, lambda: self._facts(setup), self._may_be_followed)
        control = WorkerControl(
            self.workers, self.service, self.happened, self.status, self.worker_over, self.background, context.log
        )
        outlive = 0.0 if spec.elastic is None or store is None else spec.elastic.search_timeout
        witnesses = Witnesses(
            spec.witnesses, spec.host_timeout, console.say, self.failover.write, lambda: self.ends, self.background
        )
        self.hosts = JobHosts(
            context, setup, self.workers, control, self.happened, lambda: self.ends, self.background, outlive, witnesses
        )
        self.measures = JobMeasures()
        self._kill_at = math.inf
        """When agents kill the remaining processes of the job, on the monotonic clock, in seconds."""
        self._over = asyncio.Event()

    # --- called from outside, in the loop's thread --------------------------------------------------------------

    def stop(self, code: int, why: str) -> None:
        """End the job for the user; a second call ends it at once. `code` becomes the exit code."""
        self.happened(events.StopAsked(code, why, self._context.spec.end_grace))

    def send_signal(self, number: int) -> None:
        """Send a signal to all workers, whose programs handle it."""
        for agent in self.hosts.agents():
            agent.send(SendSignal(number))

    def kill(self, rank: int, number: int) -> str:
        """Send a signal to one worker; return the consequences, for people.

        Raises:
            SpecError: there is no such worker.
        """
        worker = self.workers.of_rank(rank, self.state.world)
        worker.job_host.agent.send(SendSignal(number, worker.number))
        named = f"rank {rank} on {worker.host} gets {signal_name(number)}"
        follows = follows_a_loss(self.state) if number == signal.SIGKILL else "its program decides what happens then"
        return f"{named}; {follows}"

    def pause(self) -> None:
        """Inform the agents that the launcher is about to be suspended, so that they do not consider it lost."""
        for agent in self.hosts.agents():
            if not agent.local:
                agent.pause()

    @property
    def state(self) -> JobState:
        """The decided state of the job."""
        return self.decisions.state

    @property
    def _elastic(self) -> bool:
        return self._context.spec.elastic is not None

    @property
    def ends(self) -> bool:
        """Whether the job is being ended."""
        return self.state.end is not None

    @property
    def grace_left(self) -> float:
        """Seconds until the remaining processes are killed, once the job is being ended."""
        return max(0.0, self._kill_at - time.monotonic())

    @property
    def timeline(self) -> str:
        """The file on rank 0's host with the job's timeline; "" if none is written from the beginning."""
        path: str = self._context.spec.settings.get("timeline") or ""
        return "" if path.upper() in ("", "DYNAMIC") else os.path.abspath(path)

    async def run(self, begin: Callable[[], Awaitable[None]], hint: Callable[[HostPlan, str], str]) -> JobOutcome:
        """Begin the job, and return its outcome when no part of it is left.

        Args:
            begin: begins the job, or takes it over.
            hint: returns advice about the output of the worker that failed first; "" if there is none beyond that of
                the failure itself.

        Raises:
            NothingLeft: no part of the previous launcher's job is alive.
            SpecError: the job cannot begin; nothing was started.
        """
        try:
            await begin()
            await self._over.wait()
            await self.hosts.close()
        finally:
            self.status.close()
            self.messages.waits(Hold(""))
            self.decisions.close()
            self.failover.close()
            await self.background.end()
        for survivor in self.hosts.survivors:
            self._context.console.say(f"warning: {survivor} survived SIGKILL; run there: ps -o pid,stat,cmd PID")
        return self._outcome(hint)

    # --- facts become events -------------------------------------------------------------------------------------

    def happened(self, event: Event) -> None:
        """Decide on an event, and carry the decision out. Events that occur meanwhile are queued."""
        # A worker that joined before it was lost or suspected must not seem to have joined after that.
        self.service.decide_on_joins()
        self.decisions.happened(event, soon=self._may_wait(event))

    def _may_wait(self, event: Event) -> bool:
        """Return whether a decision may wait for more events: no process waits for what follows from this one."""
        if isinstance(event, events.WorkerEnded):
            return event.how == events.SUCCEEDED or self.ends
        return isinstance(event, Left)

    def _reported(self, worker: int, report: Report) -> None:
        """Record a worker's report about itself."""
        if isinstance(report, Failure):
            if worker in self.workers.by_number:
                self.workers.by_number[worker].reported(report)
        elif isinstance(report, Progress):
            self.status.progress(worker, report.steps, report.waited, time.monotonic())
            self.history.progress(worker, report, self.workers, self.state)
            if self._elastic and report.steps and not self.state.progressed:
                self.happened(events.Progressed())
        elif isinstance(report, Measures):
            self.measures.add(report)
        else:
            # Before its world begins, a worker of an elastic job has no rank.
            world, known = self.state.world, None if self._elastic else worker
            rank = world.index(worker) if worker in world else known
            self._context.observer.value_reported(rank, report.payload)

    def worker_over(self, worker: Worker) -> None:
        """Record that a worker has certainly ended and sends no more messages."""
        record, ends = worker.record, self.ends
        self.status.worker_ended(record.rank)
        self.service.process_ended(record.rank)
        # An elastic job's worker that the launcher ends has not failed; the decision gives the reason.
        failed = record.failed and not (self._elastic and (worker.stopped or ends))
        if failed:
            self._context.observer.worker_failed(record.rank, as_shell(record))
        in_words, returned = how_it_ended(record), record.rank in self.service.results
        what, blames = record.exception or in_words, record.consequence_of
        self.happened(events.WorkerEnded(record.rank, worker.kind_of_end, what, in_words, returned, blames))
        if failed and self._elastic:
            self.background.spawn(self.messages.end(worker, self.state.world))

    # --- decisions are carried out -------------------------------------------------------------------------------

    def _decided(self, before: JobState, event: Event, actions: Sequence[Action]) -> None:
        state = self.state
        # Only now: a successor decides again on the ends of workers that are not over, and must not miss any.
        for worker in _ended(event):
            if worker in self.workers.by_number:
                self.workers.by_number[worker].over.set()
        if self._elastic:
            # At the end of a large job, many of these facts come within a moment.
            later = isinstance(event, _FAREWELLS) and not actions
            self.failover.decided(state, self.hosts.ready, later=later)
            if state.sites is not before.sites:
                self.status.changed()
        self.service.decided(state.roster)
        for action in actions:
            self._carry_out(action)
        self.service.notify_coming()

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, events.ReachHost):
            self.hosts.reach(action.label)
        elif isinstance(action, events.StartWorker):
            job_host = self.hosts.ready[action.label]
            inherited = self._context.machine.environment
            # A host's slots may have changed since it was prepared.
            numbers = self.hosts.known.hosts.get(action.label, job_host.host).slot_numbers
            order = job_host.order(action.worker, action.slot, expected_size(self.state), inherited, numbers)
            self.workers.add(action.worker, job_host)
            job_host.agent.send(order)
        elif isinstance(action, events.StopWorkers):
            for worker in action.workers:
                self.workers.by_number[worker].stop(action.grace)
        elif isinstance(action, events.EndHost):
            self.hosts.leave(action.label)
        elif isinstance(action, events.Say):
            self._context.console.say(action.text)
        elif isinstance(action, events.EndJob):
            self._end(action)
        elif not isinstance(action, events.DrainWorkers):
            self.service.carry_out(action)
            self._note(action)

    def _note(self, action: Action) -> None:
        """Carry out the launcher's part of a roster's action."""
        if isinstance(action, Evict):
            self._context.log(f"worker {action.worker} is ended: {action.why}")
            if action.worker in self.workers.by_number:
                self.workers.by_number[action.worker].stop(0)
        elif isinstance(action, Hold) and self._elastic:
            self.messages.waits(action)
        elif isinstance(action, Announce) and self._elastic:
            for worker in action.workers:
                self.workers.by_number[worker].was_member = True
            self.messages.waits(Hold(""))
            self.background.spawn(self._report_world(action, self.service.seconds_without_world, time.time()))

    async def _report_world(self, world: Announce, seconds: float, at: float) -> None:
        """Report and record a world, once the reasons for its losses are known."""
        await self.messages.world(world, seconds)
        self.history.world_begins(world, self.workers, at)
        self.failover.changes()  # A successor must know it as well.

    def _end(self, action: events.EndJob) -> None:
        """End the job: all live processes get SIGTERM, and SIGKILL after the grace period."""
        if self.holds_end:
            return
        assert action.grace is not None
        if action.because_of is not None:
            self._context.observer.ends_others(action.because_of)
        first = math.isinf(self._kill_at)
        self._kill_at = min(self._kill_at, time.monotonic() + action.grace)
        if first:
            self.messages.waits(Hold(""))
            if self._elastic:
                self.service.ending()
            stopped = self._was_stopped
            self.background.spawn(watch_end(lambda: self._kill_at, stopped, self.hosts.agents, self.workers.flow))
        if first and self._elastic and action.grace:
            asyncio.get_running_loop().call_later(NOTICE_SECONDS, self.end_agents, action.grace)
        else:
            self.end_agents(action.grace)
        self._over.set()

    def _was_stopped(self) -> bool:
        return self.state.end is not None and self.state.end.stop_code is not None

    def end_agents(self, grace: float) -> None:
        """Order all agents to end their workers, and then to exit."""
        for agent in self.hosts.agents():
            agent.send(EndAgent(grace))

    # --- after the job -------------------------------------------------------------------------------------------

    def _outcome(self, hint: Callable[[HostPlan, str], str]) -> JobOutcome:
        end = self.state.end
        assert end is not None
        if end.stop_code is not None:
            return JobOutcome(end.stop_code)
        outcome, trouble = outcome_of(self._context.spec, self.state, self.workers, self.service.results, hint)
        if trouble:
            self._context.console.say(f"warning: {trouble}")
        return outcome

    def _facts(self, setup: HostSetup | None) -> LauncherFacts:
        assert setup is not None
        return LauncherFacts.of(setup, self.hosts, self.workers, self.history)

    def _may_be_followed(self, followed: bool) -> None:
        """Warn the user if no other launcher could continue from the failover files, and report when one can again."""
        self.hosts.may_be_followed(followed)
        if followed:
            self._context.console.say("farandole: the failover state is written again")
        else:
            self._context.console.say(
                f"warning: the failover state cannot be written ({self.failover.trouble}); if this "
                "launcher is killed now, the workers end with it"
            )


def _ended(event: Event) -> list[int]:
    """Return the workers whose ends an event reports."""
    if isinstance(event, events.EndedTogether):
        return [each.worker for each in event.ends]
    return [event.worker] if isinstance(event, events.WorkerEnded) else []

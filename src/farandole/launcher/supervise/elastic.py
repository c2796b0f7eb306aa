"""Keeps an elastic job going: does what the policy of the slots and the roster say, and tells them what happens.

Everything here runs in one asyncio loop, the roster too. Three parts decide, each for itself: the roster who is in the
world, `slots` which slots get a worker, and `discovery` which hosts there are. This part obeys all three and reports to
them; `job_hosts` is its way to the hosts, and `control` to the workers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from farandole.agent.protocol import End
from farandole.launcher.agents.agent_client import AgentLost
from farandole.launcher.discovery.discovery import Discovery
from farandole.launcher.discovery.host_set import HostList
from farandole.launcher.failure.record import how_it_ended
from farandole.launcher.failure.report import as_shell
from farandole.launcher.host_setup.host_setup import HostSetup, JobHost
from farandole.launcher.job.host_list import Host, slots_of
from farandole.launcher.job.spec import JobSpec
from farandole.launcher.output.console import Console
from farandole.launcher.output.logs import begin_attempt
from farandole.launcher.output.status import StatusLine
from farandole.launcher.slots import slot_events as words
from farandole.launcher.slots.decide import describe
from farandole.launcher.slots.phrases import named, others, who_leaves
from farandole.launcher.slots.slot_state import Policy, expected_size, living, most_members
from farandole.launcher.slots.worker_rules import will_start
from farandole.launcher.supervise.background import Background
from farandole.launcher.supervise.control import HostRow, Status
from farandole.launcher.supervise.decider import Decider
from farandole.launcher.supervise.ending import GRACE_SECONDS, Ending
from farandole.launcher.supervise.failover_files import FailoverFiles, NothingLeft
from farandole.launcher.supervise.failover_state import FailoverState, FailoverWriter, SavedEnd, SavedHost, SavedWorker
from farandole.launcher.supervise.fixed import Observer, Outcome, note_report
from farandole.launcher.supervise.job_hosts import JobHosts, Owner
from farandole.launcher.supervise.messages import Messages
from farandole.launcher.supervise.outcome import Verdict, outcome_of
from farandole.launcher.supervise.roster_port import PortLost, listen_again
from farandole.launcher.supervise.take_over import take_over_hosts
from farandole.launcher.supervise.worker_control import WorkerControl
from farandole.launcher.supervise.workers import Worker, Workers
from farandole.launcher.wording import count
from farandole.roster.events import Hold
from farandole.roster.failover_state import RosterFailoverState
from farandole.roster.service import RosterService
from farandole.roster.watcher import Watcher, WorldChange
from farandole.wire.rendezvous import Failure, Progress

# How long it takes at most that workers hear of the end of the job.
NOTICE_SECONDS = 0.05


class ElasticSupervisor(Watcher, Owner):
    """One elastic job from start to end.

    Attributes:
        has_taken_over: the hosts that another launcher had are this one's now.

    Args:
        spec: what the user wants.
        policy: of its slots.
        discovery: which has given its first answer.
        inherited: the launcher's environment, over which the workers' own is laid.
        console: where output and words to the user go.
        log: takes what only a curious user wants to know.
        observer: hears of failures at once.
        failover_files: where is written down what a successor has to know; None: there will be none.
    """

    def __init__(
        self,
        spec: JobSpec,
        policy: Policy,
        discovery: Discovery,
        inherited: Mapping[str, str],
        console: Console,
        log: Callable[[str], None],
        observer: Observer,
        failover_files: FailoverFiles | None = None,
    ) -> None:
        self._spec = spec
        self._decider = Decider(policy, self._decided, self._act, self._settled, log)
        self._discovery = discovery
        self._inherited = inherited
        self._console = console
        self._log = log
        self._observer = observer
        self._loop = asyncio.get_running_loop()
        self._hosts = HostList()
        self._background = Background()
        self._workers = Workers(spec, console)
        self._messages = Messages(console, self._workers, self.is_ending, self._finishes)
        self._status = StatusLine(console, [])
        self._ending = Ending()
        self._over = asyncio.Event()
        self._verdict = Verdict()
        self._generation = 0
        self.has_taken_over = False
        self._failover_writer = FailoverWriter(failover_files, self._failover_state)
        self._taking_over = False
        """Whether not all agents are known yet."""
        self._inherited_end: SavedEnd | None = None
        """Set if the launcher before was ending the job, or this one was told to before it knew all agents."""
        self._hasty = False
        """Whether it was told so a second time."""

    @property
    def remember(self) -> Callable[[RosterFailoverState], None]:
        """What takes all that a successor has to know of the roster."""
        return self._failover_writer.remember

    async def run(
        self,
        service: RosterService,
        setup: HostSetup,
        roster: Callable[[], Awaitable[str]],
        failover: FailoverState | None,
    ) -> Outcome:
        """Start workers, and return when nothing of the job is left.

        Args:
            service: the roster; this is its watcher.
            setup: makes hosts ready.
            roster: lets workers reach it.
            failover: of the launcher before, which was killed; None: the job begins.
        """
        self._service, self._setup = service, setup
        self._control = WorkerControl(
            self._workers, service, self._status, self._worker_over, self._background, self._log
        )
        assert self._spec.elastic is not None
        alone = self._spec.elastic.patience if self._failover_writer.exists else 0.0
        self._job_hosts = JobHosts(self._spec, setup, self._control, self, self._background, alone)
        self._failover_writer.watch(self._may_be_followed)
        try:
            if failover is None:
                self._begin()
            else:
                await self._take_over(failover, roster)
            self._background.spawn(self._discovery.watch(self._hosts_change))
            await self._over.wait()
            await self._job_hosts.close()
        finally:
            await self._close()
        for survivor in self._job_hosts.survivors:
            self._console.say(f"warning: {survivor} survived SIGKILL; see there: ps -o pid,stat,cmd PID")
        return self._outcome()

    def _begin(self) -> None:
        directory = self._spec.output_dir
        if directory is not None and (earlier := begin_attempt(directory)) is not None:
            self._console.say(f"note: what an earlier run left in {directory} is now in {earlier}")
        self._hosts_change(self._discovery.hosts)

    # --- from launcher to launcher -------------------------------------------------------------------------------

    async def _take_over(self, failover: FailoverState, roster: Callable[[], Awaitable[str]]) -> None:
        """Go on where the launcher before was killed."""
        self._taking_over = True
        self._decider.state, self._hosts, self._inherited_end = failover.slots, failover.hosts, failover.ends
        self._workers.world, self._generation = self._service.world, self._service.generation
        try:
            told = await take_over_hosts(failover, self._setup, self._job_hosts, self._workers)
        except NothingLeft:
            if self._inherited_end is None:
                raise
            self._console.say("farandole: the launcher was killed when the job was ending; nothing of it is left")
            self._go_on_ending(self._inherited_end)
            return
        self.has_taken_over = True
        self._failover_writer.write()
        self._job_hosts.let_all_outlive()
        self._console.say(told)
        unheard = self.is_ending()  # The agents were not known yet.
        await self._listen_again(roster)
        self._service.go_on()
        for worker in [
            each for each in self._workers.by_number.values() if each.record.ended and not each.over.is_set()
        ]:
            self._worker_over(worker)
        for number in living(self._decider.state).keys() - self._workers.by_number.keys():
            # Its host was being left, and nobody would tell of its end any more.
            self._service.finished(number, "was lost with its launcher", failed=True)
            self.happened(words.WorkerEnded(number, words.KILLED, "lost with its launcher"))
        for site in [each for each in self._decider.state.sites if each.phase == "reaching"]:
            if site.label in self._hosts.hosts:
                self._job_hosts.reach(self._hosts.hosts[site.label])
            else:
                self.happened(words.HostNotReady(site.label, "it is not one of the hosts any more"))
        if self._workers.world != self._decider.state.members:
            self.happened(words.WorldBegan(self._workers.world))
        self._show_places()
        self._taking_over = False
        if unheard:
            self._end_agents(0)
        elif self._inherited_end is not None and not self.is_ending():
            self._go_on_ending(self._inherited_end)
        self.happened(words.Tick())

    def _go_on_ending(self, ends: SavedEnd) -> None:
        self._taking_over = False
        self._verdict, self._ending.stop_code = ends.verdict, ends.stop_code
        self._end(0 if self._hasty else GRACE_SECONDS)
        self._ending.since = ends.since  # Whoever failed after that has not failed by itself.

    async def _listen_again(self, roster: Callable[[], Awaitable[str]]) -> None:
        """Let workers reach the roster where they look for it; end the job if that cannot be."""
        try:
            await listen_again(roster, self._setup.roster, self._console.say, self._goes_on)
        except PortLost as error:
            hint = "start it again with --resume auto: it goes on from the last checkpoint, if it has written any"
            self._end_job(words.EndJob(str(error), hint))

    def _goes_on(self) -> bool:
        return not self.is_ending() and self._inherited_end is None

    def _may_be_followed(self, followed: bool) -> None:
        """Another launcher could go on from what this one has written down, or not."""
        self._job_hosts.may_be_followed(followed)
        if followed:
            self._console.say("farandole: what another launcher has to know is written down again")
        else:
            self._console.say(
                "warning: what another launcher has to know cannot be written down (is the disk full?); if this one is "
                "killed now, the workers end with it"
            )

    def _failover_state(self) -> FailoverState:
        """Return what a successor has to know."""
        return FailoverState(
            self._setup.identity,
            self._setup.roster,
            self._hosts,
            self._decider.state,
            tuple(map(SavedHost.of, self._job_hosts.ready.values())),
            tuple(map(SavedWorker.of, self._workers.by_number.values())),
            self._ends(),
        )

    def _ends(self) -> SavedEnd | None:
        if self._ending.since is None:
            return self._inherited_end
        return SavedEnd(self._verdict, self._ending.stop_code, self._ending.since)

    # --- called from outside, in the loop's thread --------------------------------------------------------------

    def stop(self, code: int, why: str) -> None:
        """End the job because the user wants it; a second time: at once. `code` becomes the exit code."""
        workers = count(len(living(self._decider.state)), "worker")
        said = f"farandole: {why}: ending {workers}; once more to kill them"
        if self._taking_over:
            self._hasty = self._inherited_end is not None
            self._inherited_end = self._inherited_end or SavedEnd(self._verdict, code, time.monotonic())
            self._console.say(said)
        elif self._ending.stop_code is None:
            self._ending.stop_code = code
            self._console.say(said)
            self._end(GRACE_SECONDS)
        else:
            self._end(0)

    def pause(self) -> None:
        """Let the agents know that the launcher is about to be stopped, so that they do not miss it."""
        for agent in self._job_hosts.agents():
            if not agent.local:
                agent.pause()

    def add_host(self, host: Host, slots: int) -> str:
        """Let workers run on another host as well, or on more slots of one that the job has; say what happens now."""
        self._hosts.add(Host(host.name, slots, host.python))
        self._tell_hosts()
        return f"host {host.label} has {count(slots, 'slot')} now; workers start there as far as the job needs them"

    def remove_host(self, name: str) -> str:
        """Take a host away at once, with the workers that live there; say what happens now.

        Raises:
            SpecError: the job does not have it.
        """
        here = self._take_away(name)
        self.happened(words.HostRemoved(name))
        self._tell_hosts()
        return f"host {name} is removed, with {named(here) if here else 'no worker'}"

    def drain_host(self, name: str) -> str:
        """Take a host away when the workers there have finished their step and left; say what happens now.

        Raises:
            SpecError: the job does not have it.
        """
        here = self._take_away(name)
        self._tell_hosts()
        return f"host {name}: {who_leaves(self._decider.state, here)}; then the host is free"

    def resize(self, min_size: int, max_size: int | None) -> str:
        """Let the job have another size; say what happens now."""
        self._service.resize(min_size, most_members(max_size))
        self.happened(words.Resized(min_size, max_size))
        return f"from {min_size} to {'any number of' if max_size is None else max_size} workers from now on"

    def list_hosts(self) -> Sequence[HostRow]:
        """Return all hosts that the job has or waits for."""
        now = time.monotonic()
        return [
            HostRow(
                site.label,
                site.size,
                tuple(slot.worker for slot in site.slots if slot.worker is not None),
                describe(site, now),
            )
            for site in self._decider.state.sites
        ]

    def status(self) -> Status:
        """Return how the job is."""
        return {"size": len(self._workers.world), "generation": self._generation, "waits_for": self._messages.waits_for}

    # --- what the roster says -------------------------------------------------------------------------------------

    def failure_reported(self, worker: int, failure: Failure) -> None:
        """Take note of what a worker says about its own failure."""
        if worker in self._workers.by_number:
            note_report(self._workers.by_number[worker].record, failure)

    def progress_reported(self, worker: int, progress: Progress) -> None:
        """Take note of how a worker gets on."""
        self._status.progress(worker, progress.steps, progress.waited, time.monotonic())
        if progress.steps and not self._decider.state.progressed:
            self.happened(words.Progressed())

    def world_begins(self, change: WorldChange) -> None:
        """A world was announced to its workers."""
        self._workers.world, self._generation = change.workers, change.generation
        for worker in change.workers:
            self._workers.by_number[worker].was_member = True
        self._messages.waits(Hold(""))
        self._background.spawn(self._messages.world(change))
        self.happened(words.WorldBegan(change.workers))

    def finishes(self, finishing: bool) -> None:
        """Workers have finished, as far as is known, or have not."""
        self.happened(words.Finishing(finishing))

    def asks_to_leave(self, worker: int, why: str) -> None:
        """A worker is to leave, though its host stays."""
        self.happened(words.WorkerLeaves(worker, why))

    def evicts(self, worker: int, why: str) -> None:
        """This worker, if it lives, is to be killed."""
        self._log(f"worker {worker} is ended: {why}")
        if worker in self._workers.by_number:
            self._workers.by_number[worker].stop(0)

    def waits(self, hold: Hold) -> None:
        """The job waits for something; for nothing, if the hold has no kind."""
        self._messages.waits(hold)

    def ends(self, reason: str) -> None:
        """There will be no other world."""
        self._end_job(words.EndJob(reason))

    # --- hosts ------------------------------------------------------------------------------------------------------

    def _hosts_change(self, found: Sequence[Host]) -> None:
        self._hosts.find(found)
        self._tell_hosts()

    def _tell_hosts(self) -> None:
        hosts = self._hosts.hosts.values()
        self.happened(words.HostsChanged(tuple((host.label, slots_of(host)) for host in hosts)))

    def _take_away(self, name: str) -> list[int]:
        self._hosts.take_away(name)
        return [worker for worker, (site, _) in living(self._decider.state).items() if site.label == name]

    def host_leaves(self, label: str) -> None:
        """A host was asked to go."""
        if label in self._hosts.hosts:
            self._hosts.take_away(label)
        self.happened(words.HostLeaves(label))

    def host_lost(self, job_host: JobHost, lost: AgentLost) -> list[Worker]:
        """A host is lost; return the workers that are lost with it."""
        label, here = job_host.host.label, self._workers.of(job_host)
        self.happened(words.HostLost(label))
        if here and not self.is_ending():
            numbers = [each.number for each in here]
            rest = others(self._decider.state, numbers, "goes on", "go on")
            self._console.say(f"warning: host {label} is lost, with {named(numbers)}: {lost}; {rest}")
            self._control.suspect(here, lost)
        return here

    # --- workers ----------------------------------------------------------------------------------------------------

    def _start_worker(self, order: words.StartWorker) -> None:
        job_host = self._job_hosts.ready[order.label]
        size = expected_size(self._decider.state)
        self._control.start(job_host, job_host.order(order.worker, order.slot, size, self._inherited))

    def _worker_over(self, worker: Worker) -> None:
        """Tell everyone that a worker has ended, once that is certain and it has nothing more to say."""
        record = worker.record
        worker.over.set()
        self._status.worker_ended(record.rank)
        finished = worker.manner == words.SUCCEEDED and self._service.has_left(record.rank)
        self._service.finished(record.rank, how_it_ended(record), failed=record.failed)
        # Whom the launcher ends has not failed; why it was ended is told where that is decided.
        if record.failed and not worker.stopped and not self.is_ending():
            self._observer.worker_failed(record.rank, as_shell(record))
            self._background.spawn(self._messages.end(worker, self._workers.world))
        how = words.FINISHED if finished else worker.manner
        self.happened(words.WorkerEnded(record.rank, how, record.exception or how_it_ended(record)))

    # --- deciding -----------------------------------------------------------------------------------------------------

    def happened(self, event: words.Event) -> None:
        """Let the policy decide what follows."""
        self._decider.happened(event)

    def _decided(self) -> None:
        # Before anyone is asked to leave: the last one that holds the state stays for those that will be started.
        if self._will_start():
            self._service.promise(True)
        self._failover_writer.changes(self._decider.state)
        self._show_places()

    def _settled(self) -> None:
        # Those that were to be started have been: now the roster expects them.
        if not self._will_start():
            self._service.promise(False)
        self._failover_writer.changes(self._decider.state)

    def _will_start(self) -> bool:
        return will_start(self._decider.state, time.monotonic())

    def _act(self, action: words.Action) -> None:
        if self.is_ending():
            return
        if isinstance(action, words.ReachHost):
            self._job_hosts.reach(self._hosts.hosts[action.label])
        elif isinstance(action, words.StartWorker):
            self._start_worker(action)
        elif isinstance(action, words.DrainWorkers):
            self._control.drain(action.workers, action.why)
        elif isinstance(action, words.StopWorkers):
            self._control.count_out(action.workers, action.why)
        elif isinstance(action, words.EndHost):
            self._job_hosts.leave(action.label)
        elif isinstance(action, words.Say):
            self._console.say(action.text)
        else:
            self._end_job(action)

    def _show_places(self) -> None:
        self._status.workers_placed(
            [
                (site.label, tuple(slot.worker for slot in site.slots if slot.worker is not None))
                for site in self._decider.state.sites
                if site.phase == "ready"
            ]
        )

    # --- ending -------------------------------------------------------------------------------------------------------

    def is_ending(self) -> bool:
        """Whether the job is about to end."""
        return self._ending.since is not None

    def _finishes(self) -> bool:
        """Say whether workers have finished already."""
        return self._decider.state.closing

    def _end_job(self, order: words.EndJob) -> None:
        if self.is_ending():
            return
        self._verdict = Verdict(order.why, order.hint, order.worker)
        left = len(living(self._decider.state))
        if order.why and left:
            self._console.say(f"farandole: the job ends, with {count(left, 'worker')}: {order.why}")
        self._end(GRACE_SECONDS)

    def _end(self, grace: float) -> None:
        if self._ending.begin(grace):
            self._messages.waits(Hold(""))
            self._failover_writer.write()
            self._service.ending()
            self._background.spawn(self._ending.watch(self._job_hosts.agents, self._workers.flow))
            # Workers should know it before SIGTERM comes, which means something else while the job goes on.
            self._loop.call_later(NOTICE_SECONDS if grace else 0.0, self._end_agents, grace)
        else:
            self._end_agents(grace)
        self._over.set()

    def _end_agents(self, grace: float) -> None:
        for agent in self._job_hosts.agents():
            agent.tell(End(grace))

    async def _close(self) -> None:
        self._status.close()
        self._messages.waits(Hold(""))
        self._decider.close()
        self._failover_writer.close()
        await self._background.end()

    def _outcome(self) -> Outcome:
        if self._ending.stop_code is not None:
            return Outcome(self._ending.stop_code)
        assert self._ending.since is not None
        results = tuple(self._service.results.get(worker) for worker in self._workers.world)
        hint = self._setup.hint
        outcome, trouble = outcome_of(self._spec, self._verdict, self._workers, self._ending.since, results, hint)
        if trouble:
            self._console.say(f"warning: {trouble}")
        return outcome

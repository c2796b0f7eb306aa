"""The policy of an elastic job: does what the policy of the slots and the roster say, and tells them what happens.

Three parts decide, each for itself: the roster which workers are in the world, `slots` which slots get a worker, and
`discovery` which hosts there are. This part obeys all three and reports to them.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from farandole.base.wire.rendezvous import Progress
from farandole.control.launcher.agents.agent_lost import AgentLost
from farandole.control.launcher.discovery.discovery import Discovery
from farandole.control.launcher.discovery.host_set import HostSet
from farandole.control.launcher.failure.failure_text import as_shell
from farandole.control.launcher.failure.record import how_it_ended
from farandole.control.launcher.host_setup.host_setup import HostSetup, JobHost
from farandole.control.launcher.job.host_list import Host, slots_of
from farandole.control.launcher.output.console import Console
from farandole.control.launcher.slots import slot_events as events
from farandole.control.launcher.slots.phrases import named, others
from farandole.control.launcher.slots.slot_state import SlotPolicy, expected_size, living
from farandole.control.launcher.slots.worker_rules import will_start
from farandole.control.launcher.supervise.decider import Decider
from farandole.control.launcher.supervise.ending import GRACE_SECONDS
from farandole.control.launcher.supervise.failover_files import FailoverStore
from farandole.control.launcher.supervise.failover_state import (
    FailoverState,
    FailoverWriter,
    SavedEnd,
    SavedHost,
    SavedWorker,
)
from farandole.control.launcher.supervise.job_policy import JobPolicy
from farandole.control.launcher.supervise.messages import Messages
from farandole.control.launcher.supervise.outcome import Observer, Verdict
from farandole.control.launcher.supervise.supervisor import Supervisor
from farandole.control.launcher.supervise.take_over import TakeOver
from farandole.control.launcher.supervise.workers import Worker, Workers
from farandole.control.launcher.wording import count
from farandole.control.roster.events import Hold


class ElasticPolicy(JobPolicy):
    """Keeps an elastic job going.

    Attributes:
        decider: decides which slots get a worker.
        hosts: that the job has.
        messages: to people.
        writer: of what another launcher would have to know.
        take_over: from the launcher before, if there was one.

    Args:
        policy: of the slots.
        discovery: which has given its first answer.
        workers: of the job.
        setup: makes hosts ready.
        listen: lets workers reach the roster.
        inherited: the launcher's environment, over which the workers' own is laid.
        console: where words to the user go.
        log: takes lines that are printed with --verbose only.
        observer: hears of failures at once.
        failover_files: where is written down what another launcher has to know; None: there will be none.
        left: what the launcher before has left, which was killed; None: the job begins.
    """

    noun = "worker"
    fence = True
    # Workers should know of the end before SIGTERM comes, which means something else while the job goes on.
    notice_seconds = 0.05

    def __init__(
        self,
        policy: SlotPolicy,
        discovery: Discovery,
        workers: Workers,
        setup: HostSetup,
        listen: Callable[[], Awaitable[object]],
        inherited: Mapping[str, str],
        console: Console,
        log: Callable[[str], None],
        observer: Observer,
        failover_files: FailoverStore | None,
        left: FailoverState | None,
    ) -> None:
        self.decider = Decider(policy, self._decided, self._act, self._settled, log)
        self.hosts = HostSet()
        self.messages = Messages(console, workers, lambda: self.job.ending.begun, lambda: self.decider.state.closing)
        self.writer = FailoverWriter(failover_files, self._failover_state)
        self.take_over = TakeOver(self, setup, listen, console, left)
        self._discovery = discovery
        self._setup = setup
        self._inherited = inherited
        self._console = console
        self._observer = observer

    # --- begin and end --------------------------------------------------------------------------------------------

    async def begin(self, job: Supervisor) -> None:
        """Begin the job, or go on with it after another launcher.

        Raises:
            NothingLeft: another launcher had it, and nothing of it lives.
            SpecError: it cannot begin; nothing was started.
        """
        self.job = job
        self.writer.watch(self._may_be_followed)
        if self.take_over.left is None:
            job.workers.prepare_folders()
            self._hosts_found(self._discovery.hosts)
        else:
            await self.take_over.run()
        job.background.spawn(self._discovery.watch(self._hosts_found))

    @property
    def size(self) -> int:
        """Workers that have not ended."""
        return len(living(self.decider.state))

    @property
    def follows_a_loss(self) -> str:
        """What those do that are left."""
        least, left = self.decider.state.policy.min_size, len(self.job.workers.world) - 1
        if left < least:
            return f"the job waits until it has {count(least, 'worker')} again"
        return f"the job goes on with {count(left, 'worker')} until another one has been started"

    def postpones_end(self, code: int) -> bool:
        """Return whether the job is still being taken over: then it is ended when that is done."""
        return self.take_over.postpones_end(code)

    def end_begins(self) -> None:
        """Let another launcher, and the workers, know that the job is being ended."""
        self.messages.waits(Hold(""))
        self.writer.write()
        self.job.service.ending()

    def close(self) -> None:
        """Do nothing more by itself."""
        self.messages.waits(Hold(""))
        self.decider.close()
        self.writer.close()

    def end_job(self, order: events.EndJob) -> None:
        """End the job, unless it is being ended already."""
        if self.job.ending.begun:
            return
        left = self.size
        if order.why and left:
            self._console.say(f"farandole: the job ends, with {count(left, 'worker')}: {order.why}")
        self.job.end(GRACE_SECONDS, Verdict(order.why, order.hint, order.worker))

    # --- what happens ---------------------------------------------------------------------------------------------

    def happened(self, event: events.Event) -> None:
        """Let the policy of the slots decide what follows."""
        self.decider.happened(event)

    def progressed(self, progress: Progress) -> None:
        """Let the policy of the slots know that workers get anywhere."""
        if progress.steps and not self.decider.state.progressed:
            self.happened(events.Progressed())

    def hosts_changed(self) -> None:
        """The job has other hosts now, or hosts with other slots."""
        hosts = self.hosts.hosts.values()
        self.happened(events.HostsChanged(tuple((host.label, slots_of(host)) for host in hosts)))

    def _hosts_found(self, found: Sequence[Host]) -> None:
        self.hosts.find(found)
        self.hosts_changed()

    def host_leaves(self, label: str) -> None:
        """A host was asked to go."""
        if label in self.hosts.hosts:
            self.hosts.take_away(label)
        self.happened(events.HostLeaves(label))

    def host_lost(self, job_host: JobHost, lost: AgentLost) -> list[Worker]:
        """Go on without a host; its workers, which are returned, may still live."""
        label, here = job_host.host.label, self.job.workers.of(job_host)
        self.happened(events.HostLost(label))
        if here and not self.job.ending.begun:
            numbers = [each.number for each in here]
            rest = others(self.decider.state, numbers, "goes on", "go on")
            self._console.say(f"warning: host {label} is lost, with {named(numbers)}: {lost}; {rest}")
            self.job.control.suspect(here, lost)
        return here

    def worker_over(self, worker: Worker) -> None:
        """Tell everyone that a worker has ended."""
        record, service = worker.record, self.job.service
        worker.over.set()
        self.job.status.worker_ended(record.rank)
        done = service.has_left(record.rank) or record.rank in service.results
        finished = worker.kind_of_end == events.SUCCEEDED and done
        service.finished(record.rank, how_it_ended(record), failed=record.failed)
        # A worker that the launcher ends has not failed; why it was ended is told where that is decided.
        if record.failed and not worker.stopped and not self.job.ending.begun:
            self._observer.worker_failed(record.rank, as_shell(record))
            self.job.background.spawn(self.messages.end(worker, self.job.workers.world))
        how = events.FINISHED if finished else worker.kind_of_end
        self.happened(events.WorkerEnded(record.rank, how, record.exception or how_it_ended(record)))

    # --- what the policy of the slots decides -----------------------------------------------------------------------

    def _decided(self) -> None:
        # Before any worker is asked to leave: the last one that holds the state stays for those that will be started.
        if self._will_start():
            self.job.service.promise(True)
        self.writer.changes(self.decider.state)
        self.show_places()

    def _settled(self) -> None:
        # Those that were to be started have been: now the roster expects them.
        if not self._will_start():
            self.job.service.promise(False)
        self.writer.changes(self.decider.state)

    def _will_start(self) -> bool:
        return will_start(self.decider.state, time.monotonic())

    def _act(self, action: events.Action) -> None:
        job = self.job
        if job.ending.begun:
            return
        if isinstance(action, events.ReachHost):
            job.hosts.reach(self.hosts.hosts[action.label])
        elif isinstance(action, events.StartWorker):
            self._start_worker(action)
        elif isinstance(action, events.DrainWorkers):
            job.control.drain(action.workers, action.why)
        elif isinstance(action, events.StopWorkers):
            job.control.count_out(action.workers, action.why)
        elif isinstance(action, events.EndHost):
            job.hosts.leave(action.label)
        elif isinstance(action, events.Say):
            self._console.say(action.text)
        else:
            self.end_job(action)

    def _start_worker(self, action: events.StartWorker) -> None:
        job_host = self.job.hosts.ready[action.label]
        order = job_host.order(action.worker, action.slot, expected_size(self.decider.state), self._inherited)
        self.job.workers.take_on(action.worker, job_host)
        self.job.service.expect(action.worker, action.label)
        job_host.agent.tell(order)

    def show_places(self) -> None:
        """Show where workers are."""
        self.job.status.workers_placed(
            [
                (site.label, tuple(slot.worker for slot in site.slots if slot.worker is not None))
                for site in self.decider.state.sites
                if site.phase == "ready"
            ]
        )

    # --- what another launcher has to know --------------------------------------------------------------------------

    def _may_be_followed(self, followed: bool) -> None:
        """Another launcher could go on from what this one has written down, or not."""
        self.job.hosts.may_be_followed(followed)
        if followed:
            self._console.say("farandole: what another launcher has to know is written down again")
        else:
            self._console.say(
                f"warning: what another launcher has to know cannot be written down ({self.writer.trouble}); if this "
                "one is killed now, the workers end with it"
            )

    def _failover_state(self) -> FailoverState:
        return FailoverState(
            self._setup.identity,
            self._setup.roster,
            self.hosts,
            self.decider.state,
            tuple(map(SavedHost.of, self.job.hosts.ready.values())),
            tuple(map(SavedWorker.of, self.job.workers.by_number.values())),
            self._saved_end(),
            self.job.history.saved(),
        )

    def _saved_end(self) -> SavedEnd | None:
        ending = self.job.ending
        if ending.since is None:
            return self.take_over.inherited_end
        return SavedEnd(self.job.verdict, ending.stop_code, ending.since)

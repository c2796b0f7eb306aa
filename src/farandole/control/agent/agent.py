"""The agent: starts the workers of one host, forwards their output, and ensures that all of them end.

There is one on each host, a child of the launcher or started by it over ssh; it receives orders on its standard input
(see `protocol`).

Guarantees:
- When its standard input ends, for whatever reason, everything that it started is killed at once; if the launcher has
  allowed a failover (`Outlive`), only if no other launcher takes over in time (see `failover`).
- When the launcher has announced heartbeats (`Beat`) and they stop, everything is killed at once in any case: the
  launcher may be alive, and relies on that. Only while most witnesses do not hear it either, the workers go on (see
  `quorum`).
- When the agent itself is killed, the kernel kills the workers.
- It sends `AllEnded` only when no process is left that a worker started, directly or indirectly, in any session: the
  agent is a child subreaper, so an orphan becomes its child instead of init's. The agents of other hosts that it has
  started for the launcher (see `branches`) have ended before.

It is single-threaded, because PR_SET_PDEATHSIG applies to threads, not processes. No call may block: its standard
output is non-blocking, and data that does not fit stays in a buffer that flow control bounds.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from farandole.base.external_launcher import WITHIN_VARIABLE, launchers_around
from farandole.base.wire.utf8_mode import ensure_utf8
from farandole.control.agent import host_facts, worker_error_file
from farandole.control.agent.branch_messages import ToBranch
from farandole.control.agent.branches import Branches
from farandole.control.agent.connectivity import ConnectListeners, ConnectRound
from farandole.control.agent.connectivity_messages import OpenPorts, TryConnect
from farandole.control.agent.event_loop import Loop
from farandole.control.agent.failover import ExitRecords
from farandole.control.agent.file_messages import ToFiles
from farandole.control.agent.gpus import of_slots, visible_gpus
from farandole.control.agent.launcher_connection import LauncherConnection
from farandole.control.agent.oom import OomWatch
from farandole.control.agent.probe import look
from farandole.control.agent.process_tree import ProcessTree, become_subreaper, die_with_parent, send
from farandole.control.agent.protocol import (
    STDERR,
    STDOUT,
    AllEnded,
    Beat,
    Credit,
    End,
    Exited,
    Leaving,
    Look,
    NotStarted,
    Outlive,
    SendSignal,
    Stalled,
    Start,
    Started,
    Stop,
    Task,
    ToAgent,
)
from farandole.control.agent.quorum import Witness
from farandole.control.agent.roster_relay import RosterRelay
from farandole.control.agent.tasks import Tasks
from farandole.control.agent.witness_messages import AskWitnesses, BeWitness, WitnessReady
from farandole.control.agent.worker_cleanup import LEFTOVER_SECONDS, StopWatch, WorkerCleanup
from farandole.control.agent.worker_error_file import ErrorFiles
from farandole.control.agent.worker_output import WorkerOutput

if TYPE_CHECKING:
    from farandole.control.agent.files import Files

_CHUNK = 64 * 1024
# Read by `farandole.worker.core.user_log`: descriptor, device and inode of the pipe to the launcher.
_STDERR_VARIABLE = "FARANDOLE_LAUNCHER_STDERR"
# Searching for processes walks /proc, so it is not done more often than this.
_LOOK_SECONDS = 0.02
# Seconds that processes may take to end after SIGKILL. A process in an uninterruptible wait may never end.
_KILL_SECONDS = 10.0
# Seconds that an agent without a launcher gives its workers to end when it is asked to end.
_GRACE_SECONDS = 5.0


class Agent:
    """Runs until all workers have ended.

    Args:
        control: the descriptor for reading from the launcher.
        report: the descriptor for writing to it.
    """

    def __init__(self, control: int, report: int) -> None:
        self._loop = Loop()
        self._parent: int | None = None
        """Watches the process that started this one, while it is the launcher or its ssh connection."""
        self._launcher = LauncherConnection(self._loop, self, control, report)
        self._relay = RosterRelay(self._loop, self._launcher.send)
        self._branches = Branches(self._loop, self._launcher.send)
        self._connect_listeners = ConnectListeners(self._loop, self._launcher.send)
        self._tasks = Tasks(self._loop)
        self._witness: Witness | None = None
        self._files: Files | None = None
        """Created when the first files arrive."""
        self._oom = OomWatch()
        self._error_files: ErrorFiles | None = None
        """Created with the first worker, if possible."""
        self._workers: dict[int, int] = {}
        """Rank by process id."""
        self._elastic: set[int] = set()
        """Ranks of the workers that may end while others keep running."""
        self._goes_on = False
        """Whether the job is elastic: it can continue without this host."""
        self._cleanup = WorkerCleanup(self._loop, self._departed)
        self._stop_watch = StopWatch(self._loop, lambda rank, stopped: self._launcher.send(Stalled(rank, stopped)))
        self._output = WorkerOutput(self._loop, self._launcher.send, lambda: self._launcher.is_up)
        self._ending = False
        self._kill_at = 0.0
        self._look_at = 0.0
        self._give_up_at: float | None = None
        """When to stop waiting for the effect of SIGKILL, once it has been sent."""
        self._exits = ExitRecords()

    def run(self) -> None:
        """Carry out orders until everything has ended."""
        become_subreaper()
        self._watch_signals()
        self._watch_launcher()
        self._launcher.send(host_facts.collect_facts(self._relay.address))
        while not self._finished():
            self._loop.turn(_LOOK_SECONDS if self._ending else None)
        self._oom.close()
        if self._error_files is not None:
            self._error_files.close()

    # --- the launcher -------------------------------------------------------------------------------------------

    def carry_out(self, message: ToAgent) -> None:
        """Carry out an order of the launcher."""
        if isinstance(message, Start):
            self._connect_listeners.close()
            if not self._workers:
                self._before_workers()
            self._start(message)
        elif isinstance(message, Stop):
            self._stop(message)
        elif isinstance(message, Credit):
            self._launcher.written(message)
            self._output.written(message)
        elif isinstance(message, End):
            self._end(message)
        elif isinstance(message, SendSignal):
            send((pid for pid, rank in self._workers.items() if message.worker in (None, rank)), message.number)
        elif isinstance(message, Beat):
            self._launcher.expect(message)
        elif isinstance(message, Outlive):
            self._launcher.outlive(message)
        elif isinstance(message, Task):
            self._tasks.start(message, self._launcher.send)
        elif isinstance(message, Look):
            look(message, self._tasks, self._launcher.send)
        elif isinstance(message, OpenPorts):
            self._connect_listeners.open(message)
        elif isinstance(message, TryConnect):
            ConnectRound(self._loop, self._launcher.send, message)
        elif isinstance(message, BeWitness):
            self._be_witness(message)
        elif isinstance(message, AskWitnesses):
            self._launcher.ask_witnesses(message)
        elif isinstance(message, ToFiles):
            self._handle_files(message)
        elif isinstance(message, ToBranch):
            self._branches.carry_out(message)
        else:
            self._relay.carry_out(message)

    def _handle_files(self, message: ToFiles) -> None:
        if self._files is None:
            # Most jobs do without this, so hundreds of agents need not load it.
            from farandole.control.agent.files import Files

            self._files = Files(self._loop, self._launcher.send)
        self._files.carry_out(message)

    def _be_witness(self, order: BeWitness) -> None:
        if self._witness is not None:
            self._witness.close()
        self._witness = Witness(self._loop, order, lambda: self._launcher.is_steady)
        self._launcher.be_witness(order)
        self._launcher.send(WitnessReady(order.number, self._witness.port))

    def _watch_launcher(self) -> None:
        """Notice the launcher's death even if another process has inherited the other end of the input."""
        try:
            launcher = os.pidfd_open(os.getppid())
        except (OSError, AttributeError):
            return  # An old kernel, a sandbox, or another libc: the end of the input must suffice.

        self._parent = launcher
        self._loop.watch(launcher, self._parent_is_gone)

    def _parent_is_gone(self) -> None:
        self._forget_parent()
        self._launcher.ended()

    def _forget_parent(self) -> None:
        if self._parent is not None:
            self._loop.watch(self._parent)
            os.close(self._parent)
            self._parent = None

    # --- from launcher to launcher ------------------------------------------------------------------------------

    def wants_to_wait(self) -> bool:
        """Return whether the agent waits for another launcher, as it does unless it is ending."""
        return not self._ending

    def waits(self) -> None:
        """Prepare for a time without a launcher: output is unlimited, and connections to the roster wait."""
        # The next launcher is not our parent; the process that led to this one, such as sshd, may end much later.
        self._forget_parent()
        self._relay.hang_up()
        self._output.launcher_is_gone()

    def taken_over(self, seconds: float) -> None:
        """Report the state to a new launcher. If it is already gone, the agent is already waiting for another one."""
        spool = self._launcher.spool
        streams = [*self._output.open, *spool.closed]
        self._launcher.send(host_facts.collect_facts(self._relay.address))
        self._launcher.send(self._exits.report(self._workers, streams, seconds, spool.lost))
        self._launcher.send_all(Stalled(rank, True) for rank in self._stop_watch.stopped())
        self._output.launcher_is_back(spool.size_of)
        self._launcher.send_all(spool.pop_all())
        if self._launcher.is_up:
            self._relay.serve()

    def alone(self) -> None:
        """End everything: without a launcher, there is no job."""
        self._relay.hang_up()
        self._branches.cut()
        if self._witness is not None:
            self._witness.close()
        self._end(End(grace=0))

    # --- workers ------------------------------------------------------------------------------------------------

    def _before_workers(self) -> None:
        self._oom.note()
        if self._error_files is None:
            try:
                self._error_files = ErrorFiles()
            except OSError:
                return  # They run without it.

    def _environment(self, order: Start) -> dict[str, str]:
        environment = {**os.environ, **order.environment} if order.inherit else dict(order.environment)
        if order.slot_numbers and (gpus := visible_gpus(environment)):
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(of_slots(order.slot_numbers, gpus))
        if self._error_files is not None:
            environment.setdefault(worker_error_file.VARIABLE, self._error_files.path(order.rank))
        environment[WITHIN_VARIABLE] = launchers_around(environment)
        return environment

    def _start(self, order: Start) -> None:
        try:
            stderr, stderr_writer = os.pipe()
        except OSError as error:
            self._launcher.send(NotStarted(order.rank, str(error)))
            return
        # The worker gets it twice: as standard error, which it may redirect, and under this number.
        status = os.fstat(stderr_writer)
        twice = {_STDERR_VARIABLE: f"{stderr_writer}:{status.st_dev}:{status.st_ino}"}
        try:
            process = subprocess.Popen(
                order.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr_writer,
                env=self._environment(order) | twice,
                cwd=order.directory,
                start_new_session=True,
                preexec_fn=die_with_parent(os.getpid()),
                pass_fds=[stderr_writer],
            )
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            os.close(stderr)
            self._launcher.send(NotStarted(order.rank, str(error)))
            return
        finally:
            os.close(stderr_writer)
        assert process.stdout is not None
        stdout = os.dup(process.stdout.fileno())
        process.stdout.close()
        self._output.add(order.rank, STDOUT, stdout)
        self._output.add(order.rank, STDERR, stderr)
        process.returncode = 0  # Reaped by _reap, with the orphans; Popen must not wait for it.
        self._workers[process.pid] = order.rank
        self._cleanup.is_taken(process.pid)
        if order.elastic:
            self._goes_on = True
            self._elastic.add(order.rank)
            self._stop_watch.add(process.pid, order.rank)
        self._launcher.send(Started(order.rank, process.pid))

    def _watch_signals(self) -> None:
        read_end, write_end = os.pipe()
        for fd in (read_end, write_end):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        # Handlers that do nothing, not SIG_IGN: workers would inherit that. The launcher decides about a Ctrl-C or a
        # terminal that goes away.
        for signum in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            signal.signal(signum, lambda signum, frame: None)

        def noticed() -> None:
            if signal.SIGTERM in os.read(read_end, _CHUNK):
                self._asked_to_go()
            self._reap()

        self._loop.watch(read_end, noticed)

    def _asked_to_go(self) -> None:
        """Handle SIGTERM, which must not leave workers behind."""
        if self._launcher.waits:
            self._end(End(_GRACE_SECONDS))  # No launcher is there to let workers leave gracefully.
        elif self._goes_on and not self._ending:
            self._goes_on = False  # A second request is final.
            self._launcher.send(Leaving())
        else:
            self._launcher.give_up()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = os.waitstatus_to_exitcode(status)
            rank = self._workers.pop(pid, None)
            if rank is not None:
                end = self._exited(rank, pid, code)
                if self._launcher.may_be_continued:
                    self._exits.note(end)
                self._launcher.send(end)
                self._depart(rank, pid)
            else:
                self._tasks.ended(pid, code)
                self._branches.ended(pid, code)

    def _exited(self, rank: int, pid: int, code: int) -> Exited:
        written = b"" if self._error_files is None else self._error_files.read_and_remove(rank)
        # A SIGKILL from this agent is no sign of a lack of memory.
        not_by_us = code == -signal.SIGKILL and self._give_up_at is None and not self._cleanup.killed(rank)
        return Exited(rank, code, written, self._oom.killed(pid) if not_by_us else "")

    # --- workers that end alone ---------------------------------------------------------------------------------

    def _stop(self, order: Stop) -> None:
        pid = next((pid for pid, rank in self._workers.items() if rank == order.rank), None)
        if pid is not None:
            self._cleanup.stop(order.rank, pid, order.grace)

    def _depart(self, rank: int, pid: int) -> None:
        """Handle the end of a worker: if the others keep running, the processes that it has left behind must end."""
        self._stop_watch.remove(pid)
        if rank in self._elastic and not self._ending:
            self._cleanup.stop(rank, pid, LEFTOVER_SECONDS)

    def _departed(self, rank: int) -> None:
        """Report that only the output of a worker is left."""
        self._elastic.discard(rank)
        self._output.read_rest(rank)

    # --- the end ------------------------------------------------------------------------------------------------

    def _end(self, order: End) -> None:
        kill_at = time.monotonic() + order.grace
        if not self._ending:
            self._ending = True
            if self._files is not None:
                self._files.stop()
            self._kill_at = kill_at
            if order.grace > 0:
                pids = self._living()
                send(pids, signal.SIGTERM)
                send(pids, signal.SIGCONT)  # A stopped process does not handle SIGTERM.
        self._kill_at = min(self._kill_at, kill_at)

    def _living(self) -> list[int]:
        """Return the living processes that were started here; those of branches end when their agents have ended."""
        tree = ProcessTree()
        of_branches = self._branches.processes(tree)
        return [pid for pid in tree.below(os.getpid()) if pid not in of_branches]

    def _finished(self) -> bool:
        """Take the next step towards the end of the agent; return True when it is reached."""
        if not self._ending:
            return False
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + _LOOK_SECONDS
        living = self._living()
        self._reap()  # After the search: a worker that was already dead is reported before `AllEnded`.
        if living:
            if now >= self._kill_at:
                send(living, signal.SIGKILL)
                self._give_up_at = self._give_up_at or now + _KILL_SECONDS
            if self._give_up_at is None or now < self._give_up_at:
                return False
        if self._launcher.is_up and not self._output.read_rest_of_all():
            return False
        if self._branches.are_open:
            return False
        self._launcher.send(AllEnded(tuple(living)))
        while self._launcher.has_unsent:
            self._loop.turn()
        return True


def main() -> None:
    """Serve the launcher that is connected to standard input and output."""
    ensure_utf8()
    report = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # No other output may get between the frames.
    Agent(os.dup(sys.stdin.fileno()), report).run()
    # Nothing is left to clean up, and the interpreter's own shutdown takes a quarter of a short agent's time.
    os._exit(0)

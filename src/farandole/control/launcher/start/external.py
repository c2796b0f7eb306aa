"""Starts a job through mpirun or srun: they start the workers; this process serves the roster and reports the outcome.

The output of workers goes straight to this process's own output; the other program adds the rank prefix. A worker
also learns its rank from that program (see `core.surroundings`), and the roster learns the worker's host from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import textwrap
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from farandole.base.display.wording import count
from farandole.base.wire.frames import FRAME_LIMIT, LARGEST_FRAME
from farandole.base.wire.interfaces import addresses
from farandole.base.wire.rendezvous import Failure
from farandole.control.agent.process_tree import carrying, die_with_parent, send
from farandole.control.launcher.failure.hints import hint_by_error
from farandole.control.launcher.failure.record import shell_code, signal_name
from farandole.control.launcher.job.machine import Machine
from farandole.control.launcher.job.spec import LaunchSpec, check_command
from farandole.control.launcher.output.console import Console
from farandole.control.launcher.plan.dry_run import variable_lines
from farandole.control.launcher.plan.make import hosts_in_use, job_size, make_plan
from farandole.control.launcher.plan.model import LOOPBACK, SECRET_NAMES, UNKNOWN, Identity
from farandole.control.launcher.slots.job_state import GRACE_SECONDS
from farandole.control.launcher.supervise.ending import READER_SECONDS
from farandole.control.launcher.supervise.launch_context import SECRET_BYTES
from farandole.control.launcher.supervise.outcome import JobOutcome
from farandole.control.launcher.targets.external import check_library, command_line, environment_of, flavour_of
from farandole.control.launcher.targets.launch_order import Flavour, LaunchOrder, Starter
from farandole.control.launcher.targets.local import LocalNames
from farandole.control.roster import fixed
from farandole.control.roster.service import Report, RosterService
from farandole.errors import SpecError

VERSION_SECONDS = 20.0
# Seconds that processes of the other program may outlive it.
REST_SECONDS = 2.0

# Inside such an allocation, mpirun starts workers on its hosts without further options.
_ALLOCATIONS = ("SLURM_JOB_ID", "PBS_NODEFILE", "PE_HOSTFILE", "LSB_HOSTS", "LSB_MCPU_HOSTS")
# The variables that determine which Python environment is used.
_PYTHON = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
# The host of rank 0 is not known before it runs.
_MASTER = ("MASTER_ADDR", "MASTER_PORT")
# A launcher that is itself a worker must not pass on its own rank.
_PLACE = ("FARANDOLE_RANK", "FARANDOLE_SIZE", "FARANDOLE_LISTEN")


@dataclass(frozen=True)
class ExternalPlan:
    """One job, ready to start."""

    flavour: Flavour
    command: tuple[str, ...]
    """The command to run here."""
    of_workers: tuple[str, ...]
    """The command of every worker."""
    size: int
    directory: str
    environment: Mapping[str, str]
    """Variables that all workers get in addition to this process's environment."""
    local: bool
    """Whether all workers are on this machine."""


def plan_external(
    starter: Starter, flavour: Flavour, spec: LaunchSpec, machine: Machine, identity: Identity, roster: str = UNKNOWN
) -> ExternalPlan:
    """Plan a job.

    Args:
        starter: the program, and the user's options for it.
        flavour: the implementation of the program.
        spec: the launch of the job.
        machine: the machine that this runs on.
        identity: values that are known only when the job starts.
        roster: address of the roster.

    Raises:
        SpecError: that program cannot start this job.
    """
    for given, name in ((spec.output_dir, "--output-dir"), (spec.setup, "--setup")):
        if given:
            raise SpecError(
                f"{name} does not work through {starter.program}", f"{starter.program} has options of its own for that"
            )
    # Rejects jobs that no launcher could start.
    plan = make_plan(spec, machine, identity)
    hosts = hosts_in_use(spec, machine) if spec.hosts else ()
    environment = {name: value for name, value in plan.environment.items() if spec.master or name not in _MASTER}
    environment["FARANDOLE_ROSTER"] = roster
    if spec.network:
        environment["FARANDOLE_NETWORK"] = ",".join(spec.network)
    passed_on = [*environment, *(name for name in _PYTHON if name in machine.environment)]
    mpi = spec.settings.get("backend") == "mpi"
    if mpi:
        check_library(flavour, machine.environment.get("FARANDOLE_MPI_LIBRARY", ""))
    order = LaunchOrder(
        starter.program,
        job_size(spec, machine),
        hosts,
        tuple(passed_on),
        spec.command,
        root=os.geteuid() == 0,
        mpi=mpi,
        arguments=starter.arguments,
        binding=starter.binding,
    )
    return ExternalPlan(
        flavour,
        command_line(flavour, order),
        spec.command,
        order.size,
        machine.directory,
        environment,
        _is_local(flavour, spec, machine),
    )


def _is_local(flavour: Flavour, spec: LaunchSpec, machine: Machine) -> bool:
    if flavour is Flavour.SLURM:
        return False  # Slurm defines the nodes.
    if spec.hosts:
        names = LocalNames()
        return all(names.has(host) for host in spec.hosts)
    return not any(machine.environment.get(variable) for variable in _ALLOCATIONS)


def render_external(plan: ExternalPlan) -> str:
    """Format the whole plan for people, without any secret."""
    lines = [
        f"{count(plan.size, 'worker')}, started by {plan.flavour.value}",
        "",
        f"command        {shlex.join(plan.command)}",
        f"directory      {plan.directory}",
        f"roster         here, on {'loopback' if plan.local else 'all addresses'}",
        "",
        "every worker gets the launcher's environment, and",
        *variable_lines(plan.environment, SECRET_NAMES),
    ]
    return "\n".join(lines) + "\n"


def find_flavour(kind: str, machine: Machine) -> Flavour:
    """Ask a program for its implementation.

    Raises:
        SpecError: it is not installed, does not answer, or is unknown.
    """
    program = shutil.which(kind, path=machine.environment.get("PATH", os.defpath))
    if program is None:
        raise SpecError(f"there is no program {kind!r} on the PATH", "load its module, or install it")
    try:
        told = subprocess.run(
            [program, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=VERSION_SECONDS,
            env=dict(machine.environment),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SpecError(f"{program} --version gives no answer: {error}", "try it by hand") from None
    return flavour_of(told.stdout or told.stderr)


class ExternalJob:
    """A job that another program runs. Everything here runs in the loop's thread.

    Args:
        plan: the plan of the job.
        inherited: the environment of the program.
        console: the terminal that messages are written to.
        job: the job's id, which is in the environment of each of its processes on this machine.
    """

    def __init__(self, plan: ExternalPlan, inherited: Mapping[str, str], console: Console, job: str) -> None:
        self._plan = plan
        self._environment = {
            **{name: value for name, value in inherited.items() if name not in _PLACE},
            **environment_of(plan.flavour),
            **plan.environment,
        }
        self._console = console
        self._job = job
        self._loop = asyncio.get_running_loop()
        self._process: asyncio.subprocess.Process | None = None
        self._failures: dict[int, Failure] = {}
        """Failures by rank, in the order in which they were reported."""
        self._stop_code: int | None = None

    def stop(self, code: int, why: str) -> None:
        """End the job for the user; a second call ends it at once. `code` becomes the exit code."""
        if self._stop_code is not None:
            self._signal(signal.SIGKILL)
            return
        self._stop_code = code
        self._console.say(f"farandole: {why}: ending {count(self._plan.size, 'worker')}; repeat to kill them")
        self._signal(signal.SIGTERM)
        self._loop.call_later(GRACE_SECONDS, self._signal, signal.SIGKILL)

    def reported(self, rank: int, report: Report) -> None:
        """Record a worker's report about its own failure. Only its first report counts."""
        if isinstance(report, Failure):
            self._failures.setdefault(rank, report)

    async def run(self) -> JobOutcome:
        """Start the program, and return when it has ended and no process of the job is left on this machine."""
        program = self._plan.command[0]
        try:
            # It gets SIGTERM when this process is killed, and passes it on to other hosts. It has its own session:
            # Ctrl-C reaches only this process, which forwards it once.
            self._process = await asyncio.create_subprocess_exec(
                *self._plan.command,
                stdin=subprocess.DEVNULL,
                cwd=self._plan.directory,
                env=self._environment,
                start_new_session=True,
                preexec_fn=die_with_parent(os.getpid(), signal.SIGTERM),
            )
        except OSError as error:
            raise SpecError(f"{program} cannot be started: {error.strerror or error}") from None
        if self._stop_code is not None:
            self._signal(signal.SIGTERM)
        code = await self._process.wait()
        await self._sweep()
        if self._stop_code is not None:
            return JobOutcome(self._stop_code)
        if code == 0:
            return JobOutcome(0)
        return JobOutcome(shell_code(code), explain(self._plan, code, self._failures), first_to_blame(self._failures))

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _sweep(self) -> None:
        """Kill processes that the program has left behind, found by the job's id in their environment."""
        kill_at = time.monotonic() + REST_SECONDS
        give_up_at = kill_at + GRACE_SECONDS
        while left := carrying(f"FARANDOLE_JOB={self._job}"):
            if time.monotonic() > kill_at:
                send(left, signal.SIGKILL)
            if time.monotonic() > give_up_at:
                self._console.say(f"warning: processes survived SIGKILL: {' '.join(map(str, left))}")
                return
            await asyncio.sleep(0.02)


def first_to_blame(failures: Mapping[int, Failure]) -> int | None:
    """Return the rank that failed first; a rank that only lost another one counts only if there is no other failure."""
    roots = [rank for rank, failure in failures.items() if failure.consequence_of is None]
    return next(iter(roots or failures), None)


def explain(plan: ExternalPlan, code: int, failures: Mapping[int, Failure]) -> str:
    """Return a text about the worker that failed first, as far as workers have reported, and the next step.

    Args:
        plan: the plan of the job, with the program that started it.
        code: the program's exit code, or minus the signal that ended it.
        failures: the failures by rank, in the order of the reports.
    """
    program = plan.command[0]
    how = f"was killed by {signal_name(-code)}" if code < 0 else f"ended with code {code}"
    rank = first_to_blame(failures)
    if rank is None:
        return (
            f"error: {program} {how}; no worker has reported an exception\n"
            f"hint: the reason is in the output of {program} and the workers above"
        )
    failure = failures[rank]
    lines = [f"error: rank {rank} failed first: {failure.exception}"]
    lines += ["", textwrap.indent(failure.traceback.rstrip(), "    "), ""] if failure.traceback.strip() else []
    known = hint_by_error(failure.exception, plan.of_workers, plan.directory, f"the host of rank {rank}")
    ended = f"{program} {how}; its output above says how the processes ended"
    return "\n".join([*lines, f"hint: {known or ended}"])


async def launch_external(
    starter: Starter,
    spec: LaunchSpec,
    machine: Machine,
    console: Console,
    *,
    started: Callable[[ExternalJob], None] = lambda job: None,
    call: bytes | None = None,
    verbose: bool = False,
) -> JobOutcome:
    """Run a job to its end through another program, and return its outcome. Closes the console.

    Args:
        starter: the program, and the user's options for it.
        spec: the launch of the job.
        machine: the machine that the program runs on.
        console: the terminal for our own messages. The output of workers goes to this process's own output.
        started: called with the job, whose `stop` ends it early.
        call: the pickled call that the workers fetch, if they run a function.
        verbose: whether to print the plan and every decision of the roster.

    Raises:
        SpecError: the job cannot be started; nothing was.
    """

    def log(reason: str) -> None:
        if verbose:
            console.say(f"farandole: {reason}")

    try:
        return await _launch(starter, spec, machine, console, started, call, log)
    finally:
        await asyncio.to_thread(console.close, READER_SECONDS)


async def _launch(
    starter: Starter,
    spec: LaunchSpec,
    machine: Machine,
    console: Console,
    started: Callable[[ExternalJob], None],
    call: bytes | None,
    log: Callable[[str], None],
) -> JobOutcome:
    flavour = find_flavour(starter.program, machine)
    draft = plan_external(starter, flavour, spec, machine, Identity())
    if draft.local:
        check_command(spec.command, machine.directory, machine.environment)
    secret = secrets.token_bytes(SECRET_BYTES)
    service = RosterService(
        fixed.FixedState((None,) * draft.size),
        secret,
        reported=lambda rank, report: running.reported(rank, report),
        log=log,
        call=call,
        frame_limit=FRAME_LIMIT if call is None else LARGEST_FRAME,
    )
    try:
        here = [LOOPBACK] if draft.local else [each.address for each in addresses(spec.network)] or [LOOPBACK]
        roster = ",".join([await service.start(address) for address in here])
        identity = Identity(secrets.token_hex(8), secret=secret.hex())
        plan = plan_external(starter, flavour, spec, machine, identity, roster)
        for line in render_external(plan).splitlines():
            log(line)
        running = ExternalJob(plan, machine.environment, console, identity.job)
        started(running)
        outcome = await running.run()
        results = tuple(map(service.results.get, range(plan.size)))
        return replace(outcome, results=results, raised=None if outcome.rank is None else results[outcome.rank])
    finally:
        await service.close()

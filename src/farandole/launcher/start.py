"""Starts a job: binds the roster, completes the plan with what is known only now, and supervises."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable

from farandole.core.wire import FRAME_LIMIT, LARGEST_FRAME
from farandole.launcher.machine import Machine
from farandole.launcher.output import Console
from farandole.launcher.plan import LOOPBACK, Identity, Plan, make_plan, render
from farandole.launcher.spec import JobSpec, check_command
from farandole.launcher.supervise import READER_SECONDS, Observer, Outcome, Supervisor
from farandole.roster.decide import Place
from farandole.roster.service import RosterService

SECRET_BYTES = 32


async def launch(
    spec: JobSpec,
    machine: Machine,
    console: Console,
    *,
    started: Callable[[Supervisor], None] = lambda supervisor: None,
    call: bytes | None = None,
    verbose: bool = False,
    observer: Observer | None = None,
) -> Outcome:
    """Run a job to its end and return how it ended. Closes the console.

    Args:
        spec: what the user wants.
        machine: where it runs.
        console: where output goes.
        started: called with the supervisor, whose `stop` ends the job early.
        call: the pickled call that the workers fetch, if they run a function.
        verbose: tell the plan and every decision of the roster.
        observer: hears of failures at once.

    Raises:
        SpecError: it cannot be started; nothing was.
    """

    def log(reason: str) -> None:
        if verbose:
            console.say(f"farandole: {reason}")

    try:
        outcome = await _launch(spec, machine, console, started, call, log, observer or Observer())
    except BaseException:
        await asyncio.to_thread(console.close, READER_SECONDS)
        raise
    # Like any program, a job waits for the reader of its output; an interrupted one does not.
    interrupted = outcome.exit_code != 0 and not outcome.report
    await asyncio.to_thread(console.close, READER_SECONDS if interrupted else None)
    return outcome


async def _launch(
    spec: JobSpec,
    machine: Machine,
    console: Console,
    started: Callable[[Supervisor], None],
    call: bytes | None,
    log: Callable[[str], None],
    observer: Observer,
) -> Outcome:
    check_command(spec.command, machine.directory, machine.environment)
    secret = secrets.token_bytes(SECRET_BYTES)
    places = _places(make_plan(spec, machine, Identity()))
    service = RosterService(
        places,
        secret,
        on_failure=lambda rank, failure: supervisor.failure_reported(rank, failure),
        log=log,
        call=call,
        frame_limit=FRAME_LIMIT if call is None else LARGEST_FRAME,
    )
    address = await service.start(LOOPBACK)
    try:
        job = secrets.token_hex(8)
        plan = make_plan(spec, machine, Identity(job, address, str(free_port(LOOPBACK)), secret.hex()))
        _tell(plan, console, log)
        supervisor = Supervisor(plan, dict(machine.environment), service, console, job, log, observer)
        started(supervisor)
        return await supervisor.run()
    finally:
        await service.close()


def _tell(plan: Plan, console: Console, log: Callable[[str], None]) -> None:
    for note in plan.notes:
        console.say(f"note: {note}")
    for line in render(plan).splitlines():
        log(line)


def _places(plan: Plan) -> tuple[Place, ...]:
    """By rank: where each worker runs, for the roster."""

    def cross_size(local_rank: int) -> int:
        return sum(len(host.workers) > local_rank for host in plan.hosts)

    places = {
        worker.rank: Place(
            host.name, worker.local_rank, len(host.workers), worker.cross_rank, cross_size(worker.local_rank)
        )
        for host in plan.hosts
        for worker in host.workers
    }
    return tuple(places[rank] for rank in range(plan.size))


def free_port(host: str) -> int:
    """Return a port that was free a moment ago."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port

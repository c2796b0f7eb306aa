"""Jobs that `farandole run` shows as a plan, or runs in its own process.

This module loads a whole launcher. `farandole run` imports it only for these jobs: the client of an elastic job needs
none, because the job's daemon has its own launcher.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

from farandole.control.launcher.daemon.jobs import jobs_of_this_user
from farandole.control.launcher.daemon.named_job import FixedJob, NamedJob
from farandole.control.launcher.job.machine import Machine
from farandole.control.launcher.job.spec import LaunchSpec, check_command
from farandole.control.launcher.output.console import Console, open_console
from farandole.control.launcher.plan.dry_run import as_json, render
from farandole.control.launcher.plan.make import make_plan
from farandole.control.launcher.plan.model import Identity
from farandole.control.launcher.start.elastic import plan_elastic
from farandole.control.launcher.start.external import (
    ExternalJob,
    find_flavour,
    launch_external,
    plan_external,
    render_external,
)
from farandole.control.launcher.start.fixed import unknown_sites, where_hosts_are
from farandole.control.launcher.start.launch import launch
from farandole.control.launcher.supervise.outcome import JobOutcome, Observer, Running
from farandole.control.launcher.targets.launch_order import Starter

_PAUSE_SECONDS = 0.05


def dry_run(spec: LaunchSpec, machine: Machine, through: Starter | None, json: bool) -> str:
    """Return the plan as text, without contacting any other host."""
    if through is not None:
        return _dry_run_through(spec, machine, through)
    if spec.elastic is not None:
        plan = asyncio.run(plan_elastic(spec, machine))
        return as_json(plan) if json else render(plan)
    hosts = where_hosts_are(spec, machine)
    if any(local for _, local in hosts):
        check_command(spec.command, machine.directory, machine.environment)
    plan = make_plan(spec, machine, Identity(), unknown_sites(hosts, machine))
    return as_json(plan) if json else render(plan)


def _dry_run_through(spec: LaunchSpec, machine: Machine, through: Starter) -> str:
    return render_external(plan_external(through, find_flavour(through.program, machine), spec, machine, Identity()))


def launch_here(
    spec: LaunchSpec,
    machine: Machine,
    verbose: bool,
    observe: Callable[[Console], Observer] | None,
    through: Starter | None,
    name: str | None,
) -> JobOutcome:
    """Run a job in this process, which passes its signals on to the job.

    Args:
        spec: the job.
        machine: the machine on which this process runs.
        verbose: whether to print the plan and every decision of the roster.
        observe: returns the observer that is notified of failures, and may print on the console.
        through: the program that starts the workers; None: farandole's agents start them.
        name: the name by which other commands find the job; None: they do not find it.

    Raises:
        SpecError: the job cannot be started; nothing was started.
    """
    return asyncio.run(_launch(spec, machine, verbose, observe, through, name))


async def _launch(
    spec: LaunchSpec,
    machine: Machine,
    verbose: bool,
    observe: Callable[[Console], Observer] | None,
    through: Starter | None,
    name: str | None,
) -> JobOutcome:
    loop = asyncio.get_running_loop()
    jobs: list[Running | ExternalJob] = []

    def stop(signum: signal.Signals, why: str) -> None:
        for job in jobs:
            job.stop(128 + signum, why)

    def handle_signals(job: Running | ExternalJob) -> None:
        jobs.append(job)
        for signum, why in ((signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM"), (signal.SIGHUP, "SIGHUP")):
            if signal.getsignal(signum) is not signal.SIG_IGN:  # Ignored signals, as under nohup, stay ignored.
                loop.add_signal_handler(signum, stop, signum, why)

    def handle_all_signals(supervisor: Running) -> None:
        handle_signals(supervisor)
        for signum in (signal.SIGUSR1, signal.SIGUSR2):
            loop.add_signal_handler(signum, supervisor.send_signal, signum)
        if signal.getsignal(signal.SIGTSTP) is not signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGTSTP, pause, supervisor)

    def pause(supervisor: Running) -> None:
        supervisor.pause()
        # The agents of other hosts must be told first, since nothing runs here after SIGSTOP.
        loop.call_later(_PAUSE_SECONDS, os.kill, os.getpid(), signal.SIGSTOP)

    def reader_gone() -> None:
        loop.call_soon_threadsafe(stop, signal.SIGPIPE, "the reader of the output has gone")

    console = open_console(spec.output, machine.environment, reader_gone)
    if through is not None:
        return await launch_external(through, spec, machine, console, started=handle_signals, verbose=verbose)
    observer = None if observe is None else observe(console)
    with _found_by_name(name, spec) as can_be_found:

        def started(supervisor: Running) -> None:
            handle_all_signals(supervisor)
            can_be_found(supervisor)

        return await launch(spec, machine, console, started=started, verbose=verbose, observer=observer)


@contextlib.contextmanager
def _found_by_name(name: str | None, spec: LaunchSpec) -> Iterator[Callable[[Any], None]]:
    """Yield a function that registers a job of fixed size under its name, if it has one, until the job ends."""
    if name is None:
        yield lambda job: None
        return
    named = NamedJob.claim(jobs_of_this_user(os.environ), name)
    try:
        yield lambda job: named.serve(FixedJob(job), spec)
    finally:
        named.close()

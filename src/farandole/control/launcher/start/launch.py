"""Starts a job, runs it to its end, and closes its console."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from farandole.control.launcher.agents.reception import Reception
from farandole.control.launcher.background import errors_are_told
from farandole.control.launcher.job.machine import Machine
from farandole.control.launcher.job.spec import LaunchSpec
from farandole.control.launcher.output.console import Console
from farandole.control.launcher.start.fixed import launch_fixed
from farandole.control.launcher.start.open_files import raise_limit
from farandole.control.launcher.supervise.ending import READER_SECONDS
from farandole.control.launcher.supervise.failover_files import FailoverStore, NothingLeft
from farandole.control.launcher.supervise.launch_context import LaunchContext
from farandole.control.launcher.supervise.outcome import JobOutcome, Observer, Running


async def launch(
    spec: LaunchSpec,
    machine: Machine,
    console: Console,
    *,
    started: Callable[[Running], None] = lambda job: None,
    call: bytes | None = None,
    verbose: bool = False,
    observer: Observer | None = None,
    failover_files: FailoverStore | None = None,
    name: str = "",
    reception: Reception | None = None,
) -> JobOutcome:
    """Run a job to its end and return its outcome. Closes the console.

    Args:
        spec: the launch of the job.
        machine: the machine that this runs on.
        console: the terminal for the output.
        started: called with the job, whose `stop` ends it early.
        call: the pickled call that the workers fetch, if they run a function.
        verbose: whether to print the plan and every decision of the roster.
        observer: notified of failures at once.
        failover_files: the storage of the facts that a successor of this process needs. If it has any, this process is
            the successor, and takes the job over.
        name: the name of the job; "" if it has none.
        reception: accepts the hosts of the job, which dial; closed at the end. With it, a job of fixed size needs
            `num_proc`, and an elastic one has `DIAL` as its discovery. None: the launcher connects to the hosts.

    Raises:
        NothingLeft: this is the successor, and no part of the job is alive; the console is still open.
        SpecError: the job cannot be started; nothing was.
    """

    def log(reason: str) -> None:
        if verbose:
            console.say(f"farandole: {reason}")

    try:
        raise_limit(spec.num_proc)
        context = LaunchContext(spec, machine, console, log, started, call, observer or Observer(), name, reception)
        with errors_are_told(console.say_once):
            outcome = await _run(context, failover_files)
    except NothingLeft:
        raise
    except BaseException:
        await asyncio.to_thread(console.close, READER_SECONDS)
        raise
    # Like any program, a job waits for the reader of its output; an interrupted one does not.
    interrupted = outcome.exit_code != 0 and not outcome.report
    await asyncio.to_thread(console.close, READER_SECONDS if interrupted else None)
    return outcome


async def _run(context: LaunchContext, failover_files: FailoverStore | None) -> JobOutcome:
    if context.spec.elastic is None:
        return await launch_fixed(context)
    # Most jobs do not need it, and start sooner without.
    from farandole.control.launcher.start.elastic import launch_elastic

    return await launch_elastic(context, failover_files)

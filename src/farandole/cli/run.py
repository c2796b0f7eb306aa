"""`farandole run`: start a command on several workers and stay until all have ended."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from farandole.launcher.machine import Machine
    from farandole.launcher.output import Console
    from farandole.launcher.spec import JobSpec
    from farandole.launcher.supervise import Observer, Outcome, Supervisor

_USAGE_ERROR = 2
_STDOUT_FD = 1
_STDERR_FD = 2

_EPILOG = """\
examples:
  farandole run -np 2 python train.py --epochs 3     two workers on this machine
  farandole run -np auto python train.py             one for each GPU or, without any, for each core
  farandole run -np 4 --dry-run python train.py      show what would be started, and with what environment
  farandole run -np 4 -x NCCL_DEBUG=INFO --output-dir logs python train.py

Options of farandole stand before the command; all that follows belongs to the command. Every line that a worker
prints begins with [RANK]<stdout>: or [RANK]<stderr>:. When a worker fails the others are ended, the first failure is
explained, and its exit code (128 + N after signal N) becomes that of farandole run.
"""


def add_parser(verbs: Any) -> None:
    """Add this verb to the command line."""
    parser = verbs.add_parser(
        "run",
        help="run a command on several workers",
        usage="farandole run -np N [options] command [arguments]",
        description="Runs a command on N workers of this machine, each with its place in the world in its environment.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(execute=execute, parser=parser)
    add = parser.add_argument
    add("-np", "--num-proc", metavar="N", required=True, help="number of workers, or auto")
    add("--dry-run", action="store_true", help="print the plan and start nothing")
    add("--output-dir", metavar="DIR", help="also keep what workers print, as it is, in DIR/rank.N/stdout and stderr")
    add("-x", dest="exports", action="append", default=[], metavar="NAME[=VALUE]", help="set a worker's variable")
    add(
        "--start-timeout",
        metavar="S",
        type=float,
        help="seconds that workers wait for each other in init() (default: FARANDOLE_START_TIMEOUT, or 30)",
    )
    add("--fusion-threshold-mb", metavar="MB", type=int, help="fuse tensors up to this size; 0: never (default: 128)")
    add("--autotune", action="store_true", help="find the fastest settings while training, and keep them")
    add("--autotune-log-file", metavar="FILE", help="write every sample that autotuning takes into this table (CSV)")
    add("--tuning", metavar="FILE", help="use what autotuning found; with --autotune, keep it there")
    add("--transport", choices=("auto", "shm", "tcp"), help="how workers exchange tensors (default: auto)")
    add("--log-level", choices=("debug", "info", "warning", "error", "off"), help="how much the workers' core tells")
    add("--timeline", metavar="FILE", help="record what all ranks do; for chrome://tracing or ui.perfetto.dev")
    add("--timeline-mark-cycles", action="store_true", help="also mark every round of agreement in it")
    add(
        "--stall-warning",
        metavar="S",
        type=float,
        help="warn when ranks wait so long for others (default: 60; 0: never)",
    )
    add("--stall-shutdown", metavar="S", type=float, help="fail when ranks wait so long for others (default: 0, never)")
    add("--verbose", action="store_true", help="tell the plan and every decision of the roster")
    add("command", nargs=argparse.REMAINDER, help="the command and its arguments")


def execute(options: argparse.Namespace) -> int:
    """Run the verb and return the exit code."""
    from farandole.launcher.errors import SpecError
    from farandole.launcher.machine import look
    from farandole.launcher.plan import Identity, make_plan, render
    from farandole.launcher.spec import check_command

    try:
        spec = _read(options)
        machine = look()
        if not options.dry_run:
            outcome = run_until_end(spec, machine, verbose=options.verbose)
            if outcome.report:
                print(outcome.report, file=sys.stderr)
            return outcome.exit_code
        check_command(spec.command, machine.directory, machine.environment)
        print(render(make_plan(spec, machine, Identity())), end="")
        return 0
    except SpecError as error:
        print(f"error: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return _USAGE_ERROR


def _read(options: argparse.Namespace) -> JobSpec:
    from pathlib import Path

    from farandole.launcher.errors import SpecError
    from farandole.launcher.spec import JobSpec, read_start_timeout

    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        raise SpecError("there is no command to run", "farandole run -np 2 python train.py")
    if options.num_proc != "auto" and not options.num_proc.isdecimal():
        raise SpecError(f"-np {options.num_proc} is not a number of workers", "a number from 1 on, or auto")
    return JobSpec(
        command=tuple(command),
        num_proc=None if options.num_proc == "auto" else int(options.num_proc),
        start_timeout=read_start_timeout(options.start_timeout, os.environ),
        fusion_threshold_mb=options.fusion_threshold_mb,
        autotune=options.autotune,
        autotune_log=None if options.autotune_log_file is None else Path(options.autotune_log_file),
        tuning=None if options.tuning is None else Path(options.tuning),
        transport=options.transport,
        log_level=options.log_level,
        timeline=None if options.timeline is None else Path(options.timeline),
        timeline_mark_cycles=options.timeline_mark_cycles,
        stall_warning=options.stall_warning,
        stall_shutdown=options.stall_shutdown,
        exports=tuple(options.exports),
        output_dir=None if options.output_dir is None else Path(options.output_dir),
    )


def run_until_end(
    spec: JobSpec,
    machine: Machine,
    *,
    verbose: bool = False,
    observe: Callable[[Console], Observer] | None = None,
) -> Outcome:
    """Run a job as the one thing that this process does: its signals end the job, its output is this process's.

    Args:
        spec: what the user wants.
        machine: where it runs.
        verbose: tell the plan and every decision of the roster.
        observe: returns who hears of failures at once, and may say so on the console.

    Raises:
        SpecError: it cannot be started; nothing was.
    """
    import asyncio

    return asyncio.run(_launch(spec, machine, verbose, observe))


async def _launch(
    spec: JobSpec, machine: Machine, verbose: bool, observe: Callable[[Console], Observer] | None
) -> Outcome:
    import asyncio
    import signal

    from farandole.launcher.output import Console, descriptor_sink
    from farandole.launcher.start import launch

    loop = asyncio.get_running_loop()
    supervisors: list[Supervisor] = []

    def stop(signum: signal.Signals, why: str) -> None:
        for supervisor in supervisors:
            supervisor.stop(128 + signum, why)

    def obey_signals(supervisor: Supervisor) -> None:
        supervisors.append(supervisor)
        for signum, why in ((signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM"), (signal.SIGHUP, "SIGHUP")):
            if signal.getsignal(signum) is not signal.SIG_IGN:  # nohup means it.
                loop.add_signal_handler(signum, stop, signum, why)

    def reader_gone() -> None:
        loop.call_soon_threadsafe(stop, signal.SIGPIPE, "nobody reads the output any more")

    console = Console(descriptor_sink(_STDOUT_FD), descriptor_sink(_STDERR_FD), reader_gone)
    observer = None if observe is None else observe(console)
    return await launch(spec, machine, console, started=obey_signals, verbose=verbose, observer=observer)

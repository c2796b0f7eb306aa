"""`farandole run`: start a command on several workers and wait until all have ended."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farandole.base.wire.address import parse_address
from farandole.control.cli import options
from farandole.control.cli.parser import Parser
from farandole.control.launcher.configuration.env_file import read_env_file
from farandole.control.launcher.daemon.client import ClientOptions, attach, run_in_daemon
from farandole.control.launcher.daemon.launch_request import LaunchRequest
from farandole.control.launcher.job.machine import Machine, look
from farandole.control.launcher.job.spec import HOST_TIMEOUT_SECONDS, LaunchSpec, check_backend
from farandole.control.launcher.job.ssh_and_ship import ShipLimit, read_ship_limit
from farandole.control.launcher.job.worker_settings import with_environment
from farandole.control.launcher.output.console import OutputOptions, read_ranks
from farandole.control.launcher.targets.launch_order import Starter, read_arguments
from farandole.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable

    from farandole.control.launcher.output.console import Console
    from farandole.control.launcher.supervise.outcome import JobOutcome, Observer

_EPILOG = """\
examples:
  farandole run -np 2 python train.py --epochs 3     two workers on this machine
  farandole run -np auto python train.py             one worker for each GPU, or each core if there is no GPU
  farandole run -H h1:4,h2:4 python train.py         four workers on each of two machines, reached through ssh
  farandole run -np 4 --dry-run python train.py      show what would be started, with the environment
  farandole run -np 4 -x NCCL_DEBUG=INFO --output-dir logs python train.py

Options of farandole come before the command; everything after it belongs to the command. Every line that a worker
prints begins with [RANK]<stdout>: or [RANK]<stderr>:. When a worker fails, the others are ended, the first failure is
explained, and farandole run ends with that worker's exit code (128 + N after signal N).
"""


_SHORT = {
    "workers and hosts": ("-np", "-H", "--hostfile"),
    "elastic jobs: workers may fail, leave and join": ("--min-np", "--max-np"),
    "workers": ("-x", "--checkpoint-dir", "--output-dir", "--timeline"),
    "before and during the run": ("--dry-run", "--verbose", "--help-all"),
}

_SHORT_EPILOG = """\
examples:
  farandole run -np 2 python train.py --epochs 3
  farandole run -H h1:4,h2:4 python train.py
"""


def add_options(parser: Parser) -> None:
    """Add the options of this verb, and the texts of its help."""
    parser.describe(
        execute,
        usage="farandole run [-np N] [-H HOST:SLOTS,...] [options] command [arguments]",
        description="Runs a command on N workers, on this machine or on several.",
        epilog=_EPILOG,
    )
    options.add_hosts(parser)
    options.add_elastic(parser)
    options.add_network(parser)
    _add_torchrun_spellings(parser)
    _add_start(parser)
    _add_keeping(parser)
    add = parser.add_argument
    add("--dry-run", action="store_true", help="print the plan and start nothing")
    add("--json", action="store_true", help="with --dry-run: print JSON")
    _add_output(parser)
    add("-x", dest="exports", action="append", default=[], metavar="NAME[=VALUE]", help="set a worker's variable")
    options.add_settings(parser)
    add("--verbose", action="store_true", help="print the plan and every decision about an elastic job")
    add("command", nargs=argparse.REMAINDER, help="the command and its arguments")
    parser.shorten(_SHORT, _SHORT_EPILOG)


def _add_output(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("output").add_argument
    add("--output-dir", metavar="DIR", help="also save the unchanged output of workers in DIR/rank.N/stdout and stderr")
    add("--tee", action="store_true", help="accepted for torchrun's sake: output is always shown and saved")
    add(
        "--only-rank",
        metavar="RANKS",
        help="show the output of these ranks only, such as 0 or 0,4-7, or none; all is saved",
    )
    add("--color", choices=("auto", "always", "never"), default="auto", help="colours by rank (default: on a terminal)")
    add("--no-status", action="store_true", help="show no status line on a terminal")


def _add_start(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("starting")
    add = group.add_argument
    add(
        "--ship",
        metavar="DIR",
        default="",
        help="copy this directory to the other hosts, except files that git ignores",
    )
    add("--ship-limit", metavar="SIZE[,FILES]", help="limit of what --ship copies (default: 2G,100000)")
    add(
        "--ship-cache",
        metavar="PATH",  # Not DIR: it is a path on the hosts, with the home directory there.
        default="",
        help="directory where hosts keep the copy (default: ~/.cache/farandole/ship)",
    )
    add(
        "--env-file",
        action="append",
        default=[],
        metavar="FILE",
        help="file with variables for the workers, in lines NAME=value",
    )
    add(
        "--setup", metavar="COMMAND", default="", help="shell command to run once on each host before the workers start"
    )
    add(
        "--launcher",
        choices=("mpirun", "srun"),
        help="start the workers through this program",
    )
    add(
        "--launcher-args",
        metavar="ARGS",
        default="",
        help="with --launcher: arguments for that program, quoted as one word",
    )
    add("--no-preflight", action="store_true", help="do not check the hosts before the workers start")
    options.add_settings(group, "starting")
    add(
        "--end-grace",
        metavar="S",
        type=float,
        help="seconds that workers have to end when the job is stopped (default: 5)",
    )
    add(
        "--host-timeout",
        metavar="S",
        type=float,
        help="seconds of silence after which a host counts as lost (default: 1.75)",
    )
    add(
        "--witnesses",
        metavar="N",
        type=int,
        default=0,
        help="let N other hosts, such as 3, decide by majority whether this machine is cut off: then the workers go on "
        "without it, for 10 minutes at most (default: 0: they end after the host timeout)",
    )


def _add_keeping(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group(
        "jobs and their terminals", "an elastic job keeps running when its terminal closes"
    ).add_argument
    add("--job", metavar="NAME", help="the job's name for other commands (default: generated for elastic jobs)")
    add("--attach", metavar="NAME", help="show a running job; takes no command")
    add(
        "--detach",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="let Ctrl-C and SIGTERM only detach from the job (default: they end it)",
    )


def _add_torchrun_spellings(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("torchrun's options", "accepted for users of torchrun").add_argument
    add("--master-addr", metavar="HOST", help="MASTER_ADDR of the workers (default: an address of rank 0's host)")
    add("--master-port", metavar="PORT", type=int, help="MASTER_PORT of the workers (default: a free port)")
    add("--rdzv-endpoint", metavar="HOST:PORT", help="--master-addr and --master-port in one option")
    # Accepted without effect, so that torchrun's command lines work: farandole is started once, not on each host.
    for name in ("--rdzv-backend", "--rdzv-id", "--rdzv-conf", "--node-rank", "--max-restarts"):
        add(name, metavar="X", help=argparse.SUPPRESS)
    add("--standalone", action="store_true", help=argparse.SUPPRESS)


def execute(given: argparse.Namespace) -> int:
    """Run the verb and return the exit code."""
    try:
        if given.attach is not None:
            return _attach(given)
        spec = read_launch(given)
        machine = look()
        starter = _starter(given, elastic=spec.elastic is not None)
        check_backend(spec, given.launcher)
        if not given.dry_run:
            client = _client_options(given, spec)
            outcome = run_until_end(spec, machine, verbose=given.verbose, through=starter, client=client)
            if outcome.report:
                print(outcome.report, file=sys.stderr)
            return outcome.exit_code
        # Not at the top, because it loads a whole launcher: the client of an elastic job would start later.
        from farandole.control.cli.launching import dry_run

        print(dry_run(spec, machine, starter, given.json), end="")
        return 0
    except KeyboardInterrupt:
        return interrupted()


def _attach(given: argparse.Namespace) -> int:
    """Show a running job, and return its exit code."""
    if given.command or given.job is not None:
        raise SpecError(
            f"--attach {given.attach} shows a running job; it starts nothing",
            f"omit --job and the command: farandole run --attach {given.attach}",
        )
    ended = attach(ClientOptions(given.attach, given.detach), given.color)
    if ended.report:
        print(ended.report, file=sys.stderr)
    return ended.exit_code


def _client_options(given: argparse.Namespace, spec: LaunchSpec) -> ClientOptions | None:
    if spec.elastic is None:
        if given.detach:
            raise SpecError("--detach is for elastic jobs: others end when their launcher ends", "add --min-np N")
        return None if given.job is None else ClientOptions(given.job)
    return ClientOptions(given.job, given.detach)


def _starter(given: argparse.Namespace, elastic: bool) -> Starter | None:
    """Return the program that is to start the workers, if any, after checking that it supports all given options."""
    if given.launcher is None:
        if given.launcher_args:
            raise SpecError("--launcher-args: there is no program to pass them to", "add --launcher mpirun")
        return None
    refused = {
        "--ship": given.ship,
        "--tee": given.tee,
        "--only-rank": given.only_rank,
        "--job": given.job,
        "--witnesses": given.witnesses,
    }
    for flag, value in refused.items():
        if value:
            raise SpecError(f"{flag} cannot be combined with --launcher {given.launcher}", "omit one of them")
    if elastic:
        what = f"--launcher {given.launcher} starts all workers at once, so the job cannot be elastic"
        raise SpecError(what, "omit --launcher or the elastic options")
    if given.dry_run and given.json:
        raise SpecError("--json: the plan of another launcher is available as text only", "omit --json")
    return Starter(given.launcher, read_arguments("--launcher-args", given.launcher_args))


def interrupted() -> int:
    """Report that Ctrl-C came before the job had started, and return the exit code."""
    print("error: interrupted before anything was started", file=sys.stderr)
    return 130


def read_launch(given: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> LaunchSpec:
    """Return the launch that the options describe.

    Args:
        given: the options.
        environment: the launcher's environment, for options that are not given.

    Raises:
        SpecError: the options contradict each other, or a value is not valid.
    """
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not command:
        raise SpecError("the command is missing", "farandole run -np 2 python train.py")
    elastic = options.read_elastic(given)
    num_proc, hosts = options.read_hosts(given, elastic)
    return LaunchSpec(
        command=tuple(command),
        num_proc=num_proc,
        hosts=hosts,
        elastic=elastic,
        ssh=options.read_ssh(given),
        network=options.read_network(given),
        ship=_shipped(given.ship),
        ship_limit=ShipLimit() if given.ship_limit is None else read_ship_limit(given.ship_limit),
        ship_cache=given.ship_cache,
        private=tuple(_of_env_files(given.env_file).items()),
        setup=given.setup,
        preflight=not given.no_preflight,
        host_timeout=HOST_TIMEOUT_SECONDS if given.host_timeout is None else given.host_timeout,
        witnesses=given.witnesses,
        end_grace=given.end_grace,
        master=_master(given),
        settings=_settings(given, environment),
        exports=tuple(given.exports),
        output_dir=None if given.output_dir is None else Path(given.output_dir),
        output=OutputOptions(
            color=given.color,
            only_ranks=None if given.only_rank is None else read_ranks(given.only_rank),
            tee=given.tee,
            status=not given.no_status,
            is_seen_with_report=True,
            once=elastic is None,
        ),
    )


def _of_env_files(paths: list[str]) -> dict[str, str]:
    return {name: value for path in paths for name, value in read_env_file(path, os.environ).items()}


def _settings(given: argparse.Namespace, environment: Mapping[str, str]) -> dict[str, Any]:
    checkpoints = given.checkpoint_dir or environment.get("FARANDOLE_CHECKPOINT_DIR")
    if given.resume == "auto" and not checkpoints:
        raise SpecError("--resume auto: the directory of checkpoints is missing", "add --checkpoint-dir DIR")
    if checkpoints and os.path.exists(checkpoints) and not os.path.isdir(checkpoints):
        raise SpecError(f"--checkpoint-dir {checkpoints} is not a directory", "name another path: it will be created")

    # The variables that the workers get override those of the launcher.
    exported = dict(each.split("=", 1) for each in given.exports if "=" in each)
    return with_environment(options.read_settings(given), {**environment, **exported})


def _master(given: argparse.Namespace) -> str:
    if given.rdzv_endpoint is None and given.master_addr is None:
        if given.master_port is not None:
            raise SpecError("--master-port without --master-addr", "add --master-addr HOST")
        return ""
    if given.master_port is not None and not 0 <= given.master_port < 65536:
        raise SpecError(f"{given.master_port} is not a valid port", "use 1 to 65535 for --master-port")
    endpoint = given.rdzv_endpoint or f"{given.master_addr}:{given.master_port or 29500}"
    try:
        parse_address(endpoint)
    except ValueError as error:
        raise SpecError(str(error), "write --rdzv-endpoint HOST:PORT, or --master-addr HOST") from None
    return str(endpoint)


def run_until_end(
    spec: LaunchSpec,
    machine: Machine,
    *,
    verbose: bool = False,
    observe: Callable[[Console], Observer] | None = None,
    through: Starter | None = None,
    client: ClientOptions | None = None,
) -> JobOutcome:
    """Run a job in this process: its signals end the job, and it prints the job's output.

    Args:
        spec: the job that the user wants.
        machine: this machine, from which the job is started.
        verbose: whether to print the plan and every decision of the roster.
        observe: returns the observer that is notified of failures at once and may print to the console.
        through: the program that starts the workers; None starts them directly.
        client: the name under which other commands find the job, and how the output of an elastic job, which runs in a
            process of its own, is shown.

    Raises:
        SpecError: the job cannot be started; nothing has been started.
    """
    if spec.elastic is not None:
        return _run_in_daemon(spec, machine, verbose, observe, client)
    # Not at the top, for the same reason as the dry run.
    from farandole.control.cli.launching import launch_here

    return launch_here(spec, machine, verbose, observe, through, None if client is None else client.name)


def _run_in_daemon(
    spec: LaunchSpec,
    machine: Machine,
    verbose: bool,
    observe: Callable[[Console], Observer] | None,
    client: ClientOptions | None,
) -> JobOutcome:
    ended = run_in_daemon(LaunchRequest(spec, machine, verbose, observe), client or ClientOptions())
    # Not earlier: this loads the launcher, and the daemon would have to wait for that.
    from farandole.control.launcher.supervise.outcome import JobOutcome

    return JobOutcome(ended.exit_code, ended.report, ended.rank)


def _shipped(directory: str) -> str:
    """Return the directory that --ship copies, which must exist also where nothing is copied: all workers are here."""
    if directory and not os.path.isdir(directory):
        raise SpecError(f"--ship {directory} is not a directory", "use --ship . for the current directory")
    return directory

"""The flags of horovodrun.

A setting that the configuration file may also set is None unless a flag sets it: so a flag can take precedence.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

from farandole.compat.runner.config_parser import LOG_LEVELS

_USAGE_ERROR = 2

_EPILOG = """\
examples:
  horovodrun -np 4 python train.py
  horovodrun -np 4 -H localhost:4 --output-filename logs python train.py

horovodrun starts the workers as `farandole run` does; see farandole run --help for more. Flags that set something that
the engine of farandole does not have are accepted and change nothing; --verbose tells which.
"""


class Parser(argparse.ArgumentParser):
    """Prints mistakes as `error:` and `hint:`."""

    def error(self, message: str) -> NoReturn:
        """Print the error and a hint about the help, and exit."""
        self.exit(_USAGE_ERROR, f"error: {message}\nhint: see {self.prog} --help\n")

    def _get_option_tuples(self, option_string: str) -> Any:
        """Return the option that an abbreviation stands for; none if it is ambiguous.

        argparse would refuse an ambiguous one anywhere, even if it belongs to the command, such as --log of a training
        script.
        """
        found = super()._get_option_tuples(option_string)
        return found if len(found) == 1 else []


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *args: object) -> NoReturn:
        import horovod

        print(horovod.__version__)
        parser.exit()


class _Interfaces(argparse.Action):
    """Collects names of network interfaces in a set."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        if option == "--network-interface" and "," in values:
            warnings.warn("give each --network-interface alone, or use --network-interfaces", DeprecationWarning, 2)
        names = {name.strip() for name in values.split(",") if name.strip()}
        namespace.nics = (namespace.nics or set()) | names


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of horovodrun's command line."""
    parser = Parser(
        prog="horovodrun",
        usage="horovodrun -np N [options] command [arguments]",
        description="Runs a command on N workers, as Horovod's users know it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for add_group in (_job, _output, _network, _tuning, _autotune, _elastic, _observing, _library, _logging, _hosts):
        add_group(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the command and its arguments")
    parser.set_defaults(run_func=None, executable=None)
    return parser


def _job(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-v", "--version", action=_Version, nargs=0, help="print the version and exit")
    add("-np", "--num-proc", type=int, metavar="N", help="number of workers")
    add("-cb", "--check-build", action="store_true", help="print the available frameworks and libraries, and exit")
    add("--disable-cache", action="store_true", help="accepted; checks of hosts are not cached here")
    waits = "seconds that workers wait in init() for the others, from the most recent call"
    add("--start-timeout", type=int, metavar="S", help=f"{waits} (default: HOROVOD_START_TIMEOUT, or 30)")
    add("--verbose", action="store_true", help="print the plan, and which options have no effect")
    add("--config-file", metavar="FILE", help="YAML file with settings; flags win over it")
    group = parser.add_mutually_exclusive_group()
    flags = (
        ("gloo", "run without MPI, regardless of HOROVOD_CPU_OPERATIONS"),
        ("mpi", "start the workers by mpirun, and send the data between hosts by MPI"),
        ("jsrun", "accepted"),
    )
    for name, what in flags:
        group.add_argument(f"--{name}", dest=f"use_{name}", action="store_true", default=None, help=what)


def _output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output-filename", metavar="DIR", help="also save the workers' output in DIR/rank.N/stdout and stderr"
    )


def _network(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("network").add_argument
    add("--network-interfaces", dest="nics", action=_Interfaces, metavar="A,B", help="interfaces to use")
    add("--network-interface", dest="nics", action=_Interfaces, metavar="A", help="the same, one at a time")
    add("-p", "--ssh-port", type=int, metavar="PORT", help="ssh port of other hosts")
    add("-i", "--ssh-identity-file", metavar="FILE", help="ssh identity for other hosts")


def _tuning(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("tuning")
    add = group.add_argument
    add("--fusion-threshold-mb", type=int, metavar="MB", help="fuse tensors up to this size; 0: never (default: 128)")
    add("--cycle-time-ms", type=float, metavar="MS", help="accepted; the engine has no cycle")
    add("--cache-capacity", type=int, metavar="N", help="accepted; the engine remembers all requests")
    for name in ("hierarchical-allreduce", "hierarchical-allgather", "torus-allreduce"):
        _switch(group, name, "accepted; the engine and NCCL choose by size and topology")


def _autotune(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("autotune")
    _switch(group, "autotune", "find the fastest settings while training, and keep them", hidden_no=True)
    add = group.add_argument
    add("--autotune-log-file", metavar="FILE", help="write every sample into this table (CSV)")
    add("--autotune-warmup-samples", type=int, metavar="N", help="first samples, which are ignored (default: 3)")
    add("--autotune-steps-per-sample", type=int, metavar="N", help="steps in each sample (default: 10)")
    add("--autotune-bayes-opt-max-samples", type=int, metavar="N", help="maximum number of samples (default: 40)")
    add("--autotune-gaussian-process-noise", type=float, metavar="X", help="accepted; the search has no such model")


def _elastic(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("elastic training", "with --min-np or --host-discovery-script").add_argument
    least, most = "minimum number of workers (default: -np)", "maximum number of workers (default: all slots)"
    add("--min-np", "--min-num-proc", dest="min_num_proc", type=int, metavar="N", help=least)
    add("--max-np", "--max-num-proc", dest="max_num_proc", type=int, metavar="N", help=most)
    add("--slots-per-host", "--slots", dest="slots", type=int, metavar="N", help="slots of each host without a number")
    timeout = "seconds to wait for enough workers (default: HOROVOD_ELASTIC_TIMEOUT, or 600)"
    add("--elastic-timeout", type=int, metavar="S", help=timeout)
    add("--reset-limit", type=int, metavar="N", help="maximum number of changes of workers (default: no limit)")
    add(
        "--blacklist-cooldown-range",
        dest="cooldown_range",
        nargs=2,
        type=_cooldown,
        metavar=("MIN", "MAX"),
        help="seconds, 1 to 3600, after which a host with a failed worker is used again",
    )


def _cooldown(text: str) -> int:
    seconds = int(text)
    if not 1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{seconds} is not from 1 to 3600")
    return seconds


def _observing(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("timeline and stalls")
    group.add_argument("--timeline-filename", metavar="FILE", help="write a timeline")
    _switch(group, "timeline-mark-cycles", "mark cycles in it", hidden_no=True)
    stall = group.add_mutually_exclusive_group()
    stall.add_argument("--no-stall-check", action="store_true", default=None, help="do not check for stalled tensors")
    stall.add_argument("--stall-check", dest="no_stall_check", action="store_false", help=argparse.SUPPRESS)
    add = group.add_argument
    add("--stall-check-warning-time-seconds", type=int, metavar="S", help="seconds until a warning (default: 60)")
    add(
        "--stall-check-shutdown-time-seconds",
        type=int,
        metavar="S",
        help="seconds until the job is ended (default: 0, never)",
    )


def _library(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("libraries")
    _switch(group, "mpi-threads-disable", "accepted; MPI is always used from a thread of its own", hidden_no=True)
    add = group.add_argument
    add("--mpi-args", metavar="ARGS", help="with --mpi: arguments of mpirun, in one word")
    add("--tcp", dest="tcp_flag", action="store_true", default=None, help="do not let NCCL use InfiniBand")
    add("--binding-args", metavar="ARGS", help="with --mpi: arguments of mpirun that bind workers to cores")
    add("--num-nccl-streams", type=int, metavar="N", help="accepted; each GPU has one stream for collectives")
    add("--thread-affinity", type=int, metavar="CORE", help="core of the engine's thread")
    add("--gloo-timeout-seconds", type=int, metavar="S", help="accepted; losses are detected in another way")


def _logging(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("logging")
    group.add_argument("--log-level", choices=LOG_LEVELS, help="verbosity of the workers' native core")
    times = group.add_mutually_exclusive_group()
    add = times.add_argument
    with_time, hidden = "log_with_timestamp", argparse.SUPPRESS
    add("--log-with-timestamp", dest=with_time, action="store_true", default=None, help=hidden)
    add("--log-without-timestamp", dest=with_time, action="store_false", default=None, help="no time in log lines")
    add(
        "-prefix-timestamp",
        "--prefix-output-with-timestamp",
        dest="prefix_output_with_timestamp",
        action="store_true",
        help="the time before the prefix of every line",
    )
    add("--log-hide-timestamp", dest=with_time, action="store_false", default=None, help=hidden)
    add("--no-log-hide-timestamp", dest=with_time, action="store_true", default=None, help=hidden)


def _hosts(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("hosts").add_mutually_exclusive_group()
    add = group.add_argument
    add("-H", "--hosts", metavar="NAME:SLOTS,...", help="hosts and their slots (default: localhost:N)")
    add("-hostfile", "--hostfile", metavar="FILE", help="file of lines NAME slots=SLOTS")
    add("--host-discovery-script", metavar="FILE", help="script that prints NAME:SLOTS of the available hosts")


def _switch(group: Any, name: str, what: str, hidden_no: bool = False) -> None:
    """Add --name and --no-name, of which one may be given."""
    pair = group.add_mutually_exclusive_group()
    dest = name.replace("-", "_")
    pair.add_argument(f"--{name}", dest=dest, action="store_true", default=None, help=what)
    off = argparse.SUPPRESS if hidden_no else "do not"
    pair.add_argument(f"--no-{name}", dest=dest, action="store_false", default=None, help=off)


def is_elastic(args: argparse.Namespace) -> bool:
    """Return whether the arguments ask for elastic training."""
    return args.host_discovery_script is not None or args.min_num_proc is not None


def read(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse a command line; if it is not valid, print the error and exit."""
    parser = make_parser()
    args = parser.parse_args(arguments)
    if args.num_proc is None and not args.check_build:
        parser.error("the following arguments are required: -np/--num-proc")
    if args.cooldown_range and args.cooldown_range[0] > args.cooldown_range[1]:
        parser.error("--blacklist-cooldown-range: the first number is the smaller one")
    return args

"""`horovod.runner.launch`: the command horovodrun, and the code that it shares with `horovod.run`."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farandole.base.display.wording import error_lines, horovods_failure
from farandole.base.settings.table import SETTINGS
from farandole.base.wire.os_text import show_os_text
from farandole.base.wire.utf8_mode import ensure_utf8
from farandole.compat import conflict, support
from farandole.compat.runner import arguments, config_parser, hosts, lsf, mpi, network
from farandole.compat.runner.arguments import is_elastic
from farandole.compat.runner.js_run import is_jsrun_installed
from farandole.compat.runner.unused_variables import without_effect
from farandole.compat.support import gloo_built, mpi_built
from farandole.control.cli.run import run_until_end
from farandole.control.launcher.function import call_command, cause_of, pickle_call, results_of, run_in_background
from farandole.control.launcher.job.elastic import Elastic, read_elastic_timeout
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.job.machine import Machine, look
from farandole.control.launcher.job.spec import LaunchSpec
from farandole.control.launcher.job.ssh_and_ship import SshOptions
from farandole.control.launcher.job.worker_settings import with_backend, with_start_timeout
from farandole.control.launcher.supervise.outcome import JobOutcome, Observer
from farandole.control.launcher.targets.launch_order import Starter
from farandole.errors import JobFailed, LaunchError, SpecError

if TYPE_CHECKING:
    from farandole.control.launcher.output.console import Console

__all__ = [
    "check_build",
    "gloo_built",
    "is_elastic",
    "main",
    "mpi_built",
    "parse_args",
    "run_commandline",
    "run_controller",
]

_USAGE_ERROR = 2
_LOOPBACK = "127.0.0.1"

FAILED_OF_MPI = "{program} failed with exit code {code}"


@dataclass(frozen=True)
class Job:
    """The job that the arguments ask for."""

    spec: LaunchSpec
    machine: Machine
    verbose: bool
    starter: Starter | None = None
    """The program that starts the workers instead of farandole."""


# --- the command --------------------------------------------------------------------------------------------------


def main() -> int:
    """Run horovodrun and return its exit code."""
    ensure_utf8()
    show_os_text(sys.stdout, sys.stderr)
    try:
        conflict.check()
    except ImportError as error:
        return _refuse(str(error))
    return run_commandline()


def run_commandline(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code.

    The code is 0 for success, 1 if a worker failed, and 2 if nothing was started; with MPI, it is mpirun's.
    """
    try:
        args = parse_args(argv)
        job = prepare(args)
        outcome = run_until_end(job.spec, job.machine, verbose=job.verbose, observe=HorovodWords, through=job.starter)
        if job.starter is None:
            raise_failure(outcome)
        elif outcome.report:
            # As with Horovod, which becomes mpirun: its exit code, and no error of horovodrun's own.
            print(outcome.report, file=sys.stderr)
    except SpecError as error:
        return _refuse(error.message, error.hint)
    except JobFailed as error:
        print(f"RuntimeError: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted before anything was started", file=sys.stderr)
        return 130
    return outcome.exit_code


def _refuse(message: str, hint: str = "") -> int:
    print(error_lines(message, hint), file=sys.stderr)
    return _USAGE_ERROR


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line and the configuration file.

    Raises:
        ValueError: a number is negative, or the file cannot be used.
        SystemExit: help, the version or the check of the build was printed, or a flag is not valid.
    """
    args = arguments.read(argv)
    if args.check_build:
        check_build(args.verbose)
        sys.exit(0)
    if args.config_file:
        config_parser.set_args_from_config(args, config_parser.read_config(args.config_file))
    config_parser.validate_config_args(args)
    return args


def check_build(verbose: bool = False) -> None:
    """Print the available frameworks and libraries, in Horovod's format."""
    import horovod

    def mark(there: object) -> str:
        return "X" if there else " "

    frameworks = {"TensorFlow": "tensorflow", "PyTorch": "torch", "MXNet": "mxnet"}
    controllers = {"MPI": mpi_built(), "Gloo": gloo_built()}
    operations = {"NCCL": support.nccl_built(), "DDL": support.ddl_built(), "CCL": support.ccl_built(), **controllers}
    lines = [f"Horovod v{horovod.__version__}:", "", "Available Frameworks:"]
    lines += [f"    [{mark(support.extension_available(name, verbose))}] {title}" for title, name in frameworks.items()]
    lines += ["", "Available Controllers:"]
    lines += [f"    [{mark(there)}] {title}" for title, there in controllers.items()]
    lines += ["", "Available Tensor Operations:"]
    lines += [f"    [{mark(there)}] {title}" for title, there in operations.items()]
    print("\n".join(lines))
    print(
        "note: Gloo stands for what needs no MPI: here that is farandole's own engine, over shared memory and TCP",
        file=sys.stderr,
    )


# --- from arguments to a job ------------------------------------------------------------------------------------------


def prepare(
    args: argparse.Namespace, command: Sequence[str] | None = None, environment: Mapping[str, str] | None = None
) -> Job:
    """Convert arguments to the launcher's job, and print which of them have no effect.

    Args:
        args: the arguments as `parse_args` returns them.
        command: the command; None: the one in the arguments.
        environment: environment variables; None: this process's own.

    Raises:
        SpecError: such a job cannot be started here.
    """
    command = tuple(command or _command(args))
    machine = look()
    environment = dict(machine.environment if environment is None else environment)
    chosen = dict(config_parser.set_env_from_args({}, args))
    verbose = bool(args.verbose)
    settings = _settings(args, environment)
    starter = mpi.starter(args, environment) if settings.get("backend") == "mpi" else None
    mpi.tell_what_has_no_effect(args, starter)
    _tell_about_elastic_flags(args)
    where = _hosts(args, verbose)
    if verbose:
        _tell_what_has_no_effect({**environment, **chosen})
    chosen |= _interfaces(args, environment, verbose)
    spec = LaunchSpec(
        command=command,
        num_proc=args.num_proc,
        hosts=where,
        ssh=_ssh(args, environment),
        network=tuple(sorted(args.nics)) if args.nics else (),
        settings=settings,
        exports=tuple(f"{name}={value}" for name, value in with_our_names(chosen).items()),
        output_dir=None if not args.output_filename else Path(args.output_filename),
        timestamps=bool(args.prefix_output_with_timestamp),
        prefixes_in_files=True,
        elastic=_elastic(args, environment),
    )
    return Job(spec, machine, verbose, starter)


def _command(args: argparse.Namespace) -> Sequence[str]:
    command: list[str] = list(args.command or ())
    if command[:1] == ["--"]:
        del command[0]
    if not command:
        raise SpecError("there is no command to run", "horovodrun -np 2 python train.py")
    return command


def _settings(args: argparse.Namespace, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the backend, if it is not the default, and the start timeout. Flags override the environment."""
    chosen = {} if args.start_timeout is None else {"start_timeout": float(args.start_timeout)}
    if args.use_gloo or args.use_mpi:
        settings = {"backend": "mpi" if args.use_mpi else "native", **chosen}
    else:
        settings = with_backend(chosen, environment)
    return with_start_timeout(settings, environment)


def _tell_about_elastic_flags(args: argparse.Namespace) -> None:
    given = {
        "--max-np": args.max_num_proc,
        "--slots-per-host": args.slots,
        "--elastic-timeout": args.elastic_timeout,
        "--reset-limit": args.reset_limit,
        "--blacklist-cooldown-range": args.cooldown_range,
    }
    idle = [flag for flag, value in given.items() if value is not None]
    if idle and not is_elastic(args):
        print(f"note: {', '.join(idle)}: no effect without --min-np or --host-discovery-script", file=sys.stderr)


def _elastic(args: argparse.Namespace, environment: Mapping[str, str]) -> Elastic | None:
    if not is_elastic(args):
        return None
    return Elastic(
        min_size=args.num_proc if args.min_num_proc is None else args.min_num_proc,
        max_size=args.max_num_proc,
        discovery="" if args.host_discovery_script is None else f"script:{args.host_discovery_script}",
        slots=args.slots,
        timeout=read_elastic_timeout(args.elastic_timeout, environment),
        reset_limit=args.reset_limit,
        cooldown=None if args.cooldown_range is None else _cooldown(args.cooldown_range),
        fills_at_once=True,
    )


def _cooldown(seconds: Sequence[int]) -> tuple[float, float]:
    if len(seconds) != 2:
        raise SpecError(f"a cooldown range of {len(seconds)} numbers", "give the shortest and the longest time")
    return float(seconds[0]), float(seconds[1])


def _hosts(args: argparse.Namespace, verbose: bool) -> tuple[Host, ...]:
    if args.hosts and args.hostfile:
        raise SpecError("hosts and hostfile cannot both be given", "choose one")
    if args.host_discovery_script is not None:
        if args.hosts or args.hostfile:
            raise SpecError("both a list of hosts and a host discovery script are given", "choose one")
        return ()
    text = args.hosts or (hosts.parse_host_files(args.hostfile) if args.hostfile else f"localhost:{args.num_proc}")
    found = hosts.parse_hosts(text)
    if verbose:
        print(f"Remote host found: {' '.join(network.filter_local_addresses([host.hostname for host in found]))}")
    return tuple(Host(host.hostname, host.slots) for host in found)


def _ssh(args: argparse.Namespace, environment: Mapping[str, str]) -> SshOptions:
    program = environment.get("OMPI_MCA_plm_rsh_agent", "")
    return SshOptions(
        # By this variable, Kubeflow's MPI operator announces that other pods are reached through this script.
        program=program if os.path.basename(program) == "kubexec.sh" else "ssh",
        port=args.ssh_port,
        identity=args.ssh_identity_file or "",
    )


def _interfaces(args: argparse.Namespace, environment: Mapping[str, str], verbose: bool) -> dict[str, str]:
    names = sorted(args.nics) if args.nics else network.get_local_interfaces(_LOOPBACK)
    if verbose:
        print(f"All hosts are local, finding the interfaces with address {_LOOPBACK}")
        print(f"Local interface found {' '.join(names)}")
    variables = {"NCCL_IB_DISABLE": "1"} if args.tcp_flag else {}
    if not names:
        return variables
    variables["HOROVOD_GLOO_IFACE"] = names[0]
    if args.nics or "NCCL_SOCKET_IFNAME" not in environment:
        variables["NCCL_SOCKET_IFNAME"] = ",".join(names)
    return variables


def with_our_names(variables: Mapping[str, str]) -> dict[str, str]:
    """Add farandole's names of the same settings, which take precedence in a worker: so flags override both."""
    twins = {horovod[0]: ours for ours, *horovod in (row.variables for row in SETTINGS.values()) if horovod}
    return {**variables, **{twins[name]: value for name, value in variables.items() if name in twins}}


def _tell_what_has_no_effect(variables: Mapping[str, str]) -> None:
    for why, names in without_effect(variables).items():
        print(f"note: no effect here: {', '.join(names)}: {why}", file=sys.stderr)


def run_controller(
    use_gloo: bool | None,
    gloo_run: Callable[[], Any],
    use_mpi: bool | None,
    mpi_run: Callable[[], Any],
    use_jsrun: bool | None,
    js_run: Callable[[], Any],
    verbosity: int | None,
) -> None:
    """Call one of three functions: the one that the flags choose or, without flags, the first that is possible of
    jsrun, MPI and Gloo.

    Raises:
        ValueError: the chosen one is not available.
    """
    verbose = verbosity is not None and verbosity >= 2
    if use_gloo:
        _require(gloo_built(verbose), _not_built("Gloo", "CMake"))
        gloo_run()
    elif use_mpi:
        _require(mpi_built(verbose), _not_built("MPI", "MPI"))
        mpi_run()
    elif use_jsrun:
        _require(mpi_built(verbose), _not_built("MPI", "MPI"))
        _require(lsf.LSFUtils.using_lsf(), _NO_LSF)
        js_run()
    elif mpi_built(verbose):
        (js_run if lsf.LSFUtils.using_lsf() and is_jsrun_installed() else mpi_run)()
    else:
        _require(gloo_built(verbose), _NO_CONTROLLER)
        gloo_run()


# Scripts and Horovod's own tests compare these texts, so they are Horovod's, to the letter.
_NO_LSF = (
    "Horovod did not detect an LSF job.  The jsrun launcher can only be used in that environment. "
    "Please, pick a different launcher for other environments."
)
_NO_CONTROLLER = (
    "Neither MPI nor Gloo support has been built. Try reinstalling Horovod ensuring that "
    "either MPI is installed (MPI) or CMake is installed (Gloo)."
)


def _not_built(controller: str, needs: str) -> str:
    return (
        f"{controller} support has not been built.  If this is not expected, ensure {needs} is installed "
        f"and reinstall Horovod with HOROVOD_WITH_{controller.upper()}=1 to debug the build error."
    )


def _require(there: object, otherwise: str) -> None:
    if not there:
        raise SpecError(otherwise)


# --- running ----------------------------------------------------------------------------------------------------------


class HorovodWords(Observer):
    """Reports failures in Horovod's words."""

    def __init__(self, console: Console) -> None:
        self._say = console.say

    def worker_failed(self, rank: int, code: int) -> None:
        """Report that a worker has failed."""
        self._say(f"Process {rank} exit with status code {code}.")

    def ends_others(self, rank: int) -> None:
        """Report that the other workers are being ended."""
        self._say(f"Terminating remaining workers after failure of Process {rank}.")


def raise_failure(outcome: JobOutcome, starter: Starter | None = None) -> None:
    """Raise JobFailed, a RuntimeError, for a job that failed; Horovod's words come first in its text.

    Args:
        outcome: the outcome of the job.
        starter: the program that started the workers, if it was not farandole.
    """
    if not outcome.report:
        return  # All went well, or the user ended it.
    text = horovods_failure(outcome.rank, outcome.exit_code)
    if starter is not None:
        text = FAILED_OF_MPI.format(program=os.path.basename(starter.program), code=outcome.exit_code) + "\n"
    raise JobFailed(f"{text}\n{outcome.report}", outcome.rank, outcome.exit_code) from cause_of(outcome)


def _run(args: argparse.Namespace) -> list[Any] | None:
    """Run the job that the arguments describe, from within a program.

    Returns:
        The results of `args.run_func` in rank order; None for a command.

    Raises:
        ValueError: such a job cannot be started here.
        RuntimeError: a worker failed.
    """
    function: Callable[[], Any] | None = args.run_func
    job = prepare(args, None if function is None else call_command(args.executable))
    call = None if function is None else pickle_call(function, (), {})
    outcome = run_in_background(
        job.spec, job.machine, call=call, verbose=job.verbose, observe=HorovodWords, through=job.starter
    )
    raise_failure(outcome, job.starter)
    if outcome.exit_code != 0:
        raise LaunchError(f"the job was ended early: {shlex.join(job.spec.command)}")
    if function is None:
        return None
    # With Horovod, an elastic job returns as many results as it is certain to have workers.
    return results_of(outcome)[: None if job.spec.elastic is None else job.spec.elastic.min_size]


if __name__ == "__main__":
    # By its real name, by which objects such as `HorovodWords` are found in another process.
    from farandole.compat.runner import launch

    sys.exit(launch.main())

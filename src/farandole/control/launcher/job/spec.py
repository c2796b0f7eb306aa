"""A launch: the command, the hosts, the options for reaching them, and checks whether it can be started.

The launcher makes its plan from a launch. `from_job` creates launches from descriptions of jobs
(`farandole.control.jobs.spec`), and `farandole run` creates them from its options.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farandole.base.display.wording import count
from farandole.base.settings.table import SETTINGS
from farandole.base.wire.interfaces import every_address, list_addresses, pick
from farandole.control.agent.command_check import unreadable_tuning, what_is_wrong
from farandole.control.launcher.job.dialed_hosts import DialedHosts
from farandole.control.launcher.job.elastic import Elastic
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.job.ssh_and_ship import ShipLimit, SshOptions
from farandole.control.launcher.job.worker_settings import check_settings, settings_environment
from farandole.control.launcher.output.console import OutputOptions
from farandole.errors import SpecError

HOST_TIMEOUT_SECONDS = 1.75
# Witnesses are heard four times a second.
LEAST_TIMEOUT_OF_WITNESSES = 1.5
MOST_WORKERS = 1_000_000


@dataclass(frozen=True)
class LaunchSpec:
    """One launch of a job, with a field for each option; the settings of workers are in `settings`.

    Raises:
        SpecError: a value is not valid.
    """

    command: tuple[str, ...]
    num_proc: int | None
    """Number of workers; None: one for each GPU or, without any, for each core."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The workers' settings that were given, by name, with values in the units of `farandole.base.settings.table`."""
    exports: tuple[str, ...] = ()
    """Variables for the workers: `NAME=value`, or the `NAME` of a variable that is already set."""
    output_dir: Path | None = None
    output: OutputOptions = field(default_factory=OutputOptions)
    """Options for showing the output."""
    hosts: tuple[Host, ...] = ()
    """The hosts, which get workers in this order; each name counts as one host. Empty: this machine."""
    ssh: SshOptions = field(default_factory=SshOptions)
    """The ssh options for reaching other hosts."""
    dialed: DialedHosts | None = None
    """What hints say about hosts that dial the launcher; None: ssh leads to all hosts, unless host discovery says
    otherwise."""
    network: tuple[str, ...] = ()
    """The networks between workers of different hosts: names of interfaces, addresses or networks; empty: the reachable
    ones, fastest first."""
    ship: str = ""
    """A directory that is copied to the other hosts, where workers run in it; "": the hosts have the code already."""
    ship_limit: ShipLimit = field(default_factory=ShipLimit)
    ship_cache: str = ""
    """The directory on the hosts for the copy; "": the user's cache directory there."""
    private: tuple[tuple[str, str], ...] = ()
    """Variables for the workers whose values are never shown; `exports` override them."""
    setup: str = ""
    """A shell command that runs once on each host before the workers."""
    preflight: bool = True
    """Whether to check all hosts before the workers start. Jobs on one machine skip this check."""
    host_timeout: float = HOST_TIMEOUT_SECONDS
    """Seconds of silence after which another host counts as lost."""
    witnesses: int = 0
    """Number of hosts that decide by majority whether this machine is cut off, and the workers go on without it."""
    end_grace: float | None = None
    """Seconds that workers have after SIGTERM when the job is stopped from outside; None: the default."""
    master: str = ""
    """host:port for MASTER_ADDR and MASTER_PORT; "": an address of rank 0's host, and a free port."""
    timestamps: bool = False
    """Whether every line begins with the time, before the prefix."""
    prefixes_in_files: bool = False
    """Whether files of the output directory get the lines as shown, instead of the bytes that the worker wrote."""
    elastic: Elastic | None = None
    """The limits of an elastic job; None: all workers start at once, and the job ends when one of them is lost."""

    def __post_init__(self) -> None:
        if self.num_proc is not None and (not isinstance(self.num_proc, int) or self.num_proc < 1):
            raise SpecError(
                f"{self.num_proc!r} workers cannot be started", "use 1 or more for -np or num_proc, or -np auto"
            )
        if self.num_proc is not None and self.num_proc > MOST_WORKERS:
            raise SpecError(f"{self.num_proc} workers cannot be started", f"use at most {MOST_WORKERS}")
        if not 0.5 < self.host_timeout < math.inf:
            raise SpecError(
                f"a host timeout of {self.host_timeout:g} s is not valid",
                "use a number of seconds above 0.5 for --host-timeout: hosts send heartbeats twice a second",
            )
        if self.witnesses < 0 or (self.witnesses and self.witnesses % 2 == 0):
            raise SpecError(
                f"{self.witnesses} is not a valid number of witnesses",
                "use an odd number for --witnesses, such as 3, so that there is always a majority; or 0 for none",
            )
        if self.witnesses and isinstance(self.access, DialedHosts):
            raise SpecError(
                "--witnesses works only with hosts that the launcher reaches, not with hosts that connect to it",
                "omit --witnesses",
            )
        if self.witnesses and self.host_timeout < LEAST_TIMEOUT_OF_WITNESSES:
            raise SpecError(
                f"a host timeout of {self.host_timeout:g} s is too short for witnesses",
                f"use {LEAST_TIMEOUT_OF_WITNESSES:g} seconds or more for --host-timeout",
            )
        if self.end_grace is not None and not 0 <= self.end_grace < math.inf:
            raise SpecError(
                f"an end grace of {self.end_grace:g} s is not valid", "use 0 to kill at once, or more seconds"
            )
        if self.ship_cache and not self.ship_cache.startswith(("/", "~")):
            raise SpecError(
                f"--ship-cache {self.ship_cache} is a relative path, which has no meaning on other hosts",
                "write an absolute path, or one that begins with ~/",
            )
        check_settings(self.settings)
        if self.elastic is not None and self.num_proc is not None:
            self.elastic.check_first_size(self.num_proc)

    @property
    def access(self) -> SshOptions | DialedHosts:
        """The way to other hosts, for hints."""
        dials = self.elastic is not None and self.elastic.hosts_dial
        return self.dialed or (DialedHosts() if dials else self.ssh)

    @property
    def start_timeout(self) -> float:
        """Seconds that workers wait for each other in init()."""
        seconds: float = self.settings.get("start_timeout", SETTINGS["start_timeout"].default)
        return seconds


def read_exports(exports: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Parse `NAME=value` and `NAME` into variables.

    Raises:
        SpecError: the variable `NAME` is not set, or the name is empty.
    """
    variables = {}
    for export in exports:
        name, equals, value = export.partition("=")
        if not name:
            raise SpecError(f"-x {export}: the name before the = is missing", "write -x NAME=value")
        if not equals and name not in environment:
            raise SpecError(f"-x {name}: this variable is not set", f"set it, or write -x {name}=value")
        variables[name] = value if equals else environment[name]
    return variables


def check_witnesses(spec: LaunchSpec, others: int) -> None:
    """Reject a job with fewer hosts, other than this machine, than witnesses.

    Raises:
        SpecError: it has too few.
    """
    if spec.witnesses > others:
        raise SpecError(
            f"the job has {count(others, 'other host')}, too few for --witnesses {spec.witnesses}",
            "a witness is a host that is not this machine; use fewer of them, or none",
        )


def check_command(command: Sequence[str], directory: str, environment: Mapping[str, str]) -> None:
    """Check, before anything starts, that the command can be started on this machine.

    Raises:
        SpecError: the program, or the script for a Python interpreter, does not exist.
    """
    wrong = what_is_wrong(command, directory, environment)
    if wrong is not None:
        raise SpecError(*wrong)


def check_network(networks: Sequence[str]) -> None:
    """Check the networks of a job whose workers are all on this machine and do not use them.

    Raises:
        SpecError: one of them is neither an interface nor an address here, so it is probably misspelled.
    """
    found = every_address()
    for network in networks:
        if not pick(found, [network]):
            raise SpecError(
                f"no network interface or address of this machine matches {network}; "
                f"there are: {list_addresses(found)}",
                "correct --network, or omit it: on one machine, workers need no network",
            )


def tuning_file(directory: str, environment: Mapping[str, str]) -> str:
    """Return the file with the results of autotuning that rank 0 reads; "": none, or autotuning will write it.

    Args:
        directory: the directory in which rank 0 starts.
        environment: the variables of the workers.
    """
    if any(environment.get(name, "0") not in ("", "0") for name in SETTINGS["autotune"].variables):
        return ""
    (variable,) = SETTINGS["tuning"].variables
    return os.path.join(directory, environment[variable]) if environment.get(variable) else ""


def check_tuning(spec: LaunchSpec, directory: str, environment: Mapping[str, str]) -> None:
    """Check that this machine, on which rank 0 runs, has the file of --tuning.

    Raises:
        SpecError: it cannot be read, and autotuning will not write it.
    """
    exports = read_exports(spec.exports, environment)
    path = tuning_file(directory, {**environment, **settings_environment(spec.settings, directory), **exports})
    if path and (wrong := unreadable_tuning(path)):
        raise SpecError(*wrong)


def check_backend(spec: LaunchSpec, launcher: str | None) -> None:
    """Reject a job whose workers are connected by MPI but not started by it.

    Args:
        spec: the job that the user wants.
        launcher: the program that starts the workers; None: farandole starts them.

    Raises:
        SpecError: the combination cannot work.
    """
    if spec.settings.get("backend") != "mpi":
        return
    if spec.elastic is not None:
        raise SpecError(
            "--backend mpi: an MPI world has a fixed set of processes and ends with any of them, so the job "
            "cannot be elastic",
            "omit --backend mpi or the elastic options",
        )
    if launcher is None:
        raise SpecError(
            "--backend mpi: MPI connects only processes that it has started itself",
            "add --launcher mpirun (or srun), with the mpirun of that MPI on the PATH",
        )

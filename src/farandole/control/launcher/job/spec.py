"""What the user wants, and whether it can be started at all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farandole.base.settings.table import SETTINGS
from farandole.control.agent.command_check import what_is_wrong
from farandole.control.launcher.job.elastic import Elastic
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.job.ssh_and_ship import ShipLimit, SshOptions
from farandole.control.launcher.job.worker_settings import check_settings
from farandole.control.launcher.output.console import OutputOptions
from farandole.errors import SpecError

START_TIMEOUT_SECONDS: float = SETTINGS["start_timeout"].default
HOST_TIMEOUT_SECONDS = 1.75


@dataclass(frozen=True)
class JobSpec:
    """One job, as the user asked for it: a field for each thing that can be asked for.

    A job has as many fields as there are things to ask for; those of the workers are one mapping, `settings`.

    Raises:
        SpecError: a value that no job can have.
    """

    command: tuple[str, ...]
    num_proc: int | None
    """Number of workers; None: one for each GPU or, without any, for each core."""
    start_timeout: float = START_TIMEOUT_SECONDS
    """Seconds that workers wait for each other in init()."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What was asked of the workers' other settings: by name, values as `farandole.base.settings.table` takes them."""
    exports: tuple[str, ...] = ()
    """`NAME=value`, or `NAME` of a variable that is set already."""
    output_dir: Path | None = None
    output: OutputOptions = field(default_factory=OutputOptions)
    """What of the output is shown, and how."""
    hosts: tuple[Host, ...] = ()
    """Filled in this order; each name counts as a host. Empty: this machine is one."""
    ssh: SshOptions = field(default_factory=SshOptions)
    """How other machines are reached."""
    network: tuple[str, ...] = ()
    """Through which the workers of different hosts talk: names of interfaces, addresses or networks; empty: whichever
    answers, the fastest first."""
    ship: str = ""
    """A directory that is sent to the other hosts, where workers run in it; "": they have the code already."""
    ship_limit: ShipLimit = field(default_factory=ShipLimit)
    ship_cache: str = ""
    """Where it is kept on the hosts; "": in the user's cache there."""
    private: tuple[tuple[str, str], ...] = ()
    """Variables of the workers whose values are not shown anywhere; `exports` win over them."""
    setup: str = ""
    """A shell command that runs once on each host before the workers."""
    preflight: bool = True
    """Whether all hosts are looked at before anything starts. Jobs on one machine need none."""
    host_timeout: float = HOST_TIMEOUT_SECONDS
    """Seconds of silence after which another host counts as lost."""
    end_grace: float | None = None
    """Seconds that workers have after SIGTERM when the job is stopped from outside; None: as few as ever."""
    master: str = ""
    """host:port for MASTER_ADDR and MASTER_PORT; "": an address of rank 0's host, and a free port."""
    timestamps: bool = False
    """Whether the time stands before the prefix of every line."""
    prefixes_in_files: bool = False
    """Whether files of the output directory get lines as they are shown, not the bytes as the worker wrote them."""
    elastic: Elastic | None = None
    """How its workers may come and go; None: they all start, and the job ends when one of them is lost."""

    def __post_init__(self) -> None:
        if self.num_proc is not None and self.num_proc < 1:
            raise SpecError(f"{self.num_proc} workers cannot be started", "-np takes a number from 1 on, or auto")
        if self.start_timeout <= 0:
            raise SpecError(f"a start timeout of {self.start_timeout:g} s leaves no time to start")
        if not 0.5 < self.host_timeout < math.inf:
            raise SpecError(
                f"{self.host_timeout:g} s is no time after which a host counts as lost",
                "--host-timeout takes seconds above 0.5; hosts give signs of life twice a second",
            )
        if self.end_grace is not None and not 0 <= self.end_grace < math.inf:
            raise SpecError(f"{self.end_grace:g} s is no time in which workers can end", "--end-grace 0 kills at once")
        check_settings(self.settings)
        if self.elastic is not None and self.num_proc is not None:
            self.elastic.check_first_size(self.num_proc)


def read_start_timeout(given: float | None, environment: Mapping[str, str]) -> float:
    """Return the start timeout in seconds: as given, from the environment, or the default.

    Raises:
        SpecError: the variable is not a number.
    """
    if given is not None:
        return given
    for name in SETTINGS["start_timeout"].variables:
        if text := environment.get(name):
            try:
                return float(text)
            except ValueError:
                raise SpecError(f"{name}={text} is not a number of seconds") from None
    return START_TIMEOUT_SECONDS


def read_exports(exports: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Turn `NAME=value` and `NAME` into variables.

    Raises:
        SpecError: a `NAME` that is not set, or no name at all.
    """
    variables = {}
    for export in exports:
        name, equals, value = export.partition("=")
        if not name:
            raise SpecError(f"-x {export}: there is no name before the =", "write -x NAME=value")
        if not equals and name not in environment:
            raise SpecError(f"-x {name}: this variable is not set", f"set it, or write -x {name}=value")
        variables[name] = value if equals else environment[name]
    return variables


def check_command(command: Sequence[str], directory: str, environment: Mapping[str, str]) -> None:
    """Find out before anything starts whether the command can be started on this machine.

    Raises:
        SpecError: there is no such program, or the script that a Python interpreter is to run is not there.
    """
    wrong = what_is_wrong(command, directory, environment)
    if wrong is not None:
        raise SpecError(*wrong)

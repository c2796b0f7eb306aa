"""What the user wants, and whether it can be started at all."""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from farandole.launcher.errors import SpecError

TRANSPORTS = ("auto", "shm", "tcp")
LOG_LEVELS = ("debug", "info", "warning", "error", "off")
START_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True)
class HostSlots:
    """A host and how many workers there is room for on it."""

    name: str
    slots: int


@dataclass(frozen=True)
class JobSpec:
    """One job, as the user asked for it.

    Raises:
        SpecError: a value that no job can have.
    """

    command: tuple[str, ...]
    num_proc: int | None
    """Number of workers; None: one for each GPU or, without any, for each core."""
    start_timeout: float = START_TIMEOUT_SECONDS
    """Seconds that workers wait for each other in init()."""
    fusion_threshold_mb: int | None = None
    autotune: bool = False
    autotune_log: Path | None = None
    tuning: Path | None = None
    """Where what autotuning finds is kept; without it, is taken from."""
    transport: str | None = None
    log_level: str | None = None
    exports: tuple[str, ...] = ()
    """`NAME=value`, or `NAME` of a variable that is set already."""
    output_dir: Path | None = None
    timeline: Path | None = None
    """Where rank 0 records what all ranks do."""
    timeline_mark_cycles: bool = False
    stall_warning: float | None = None
    """Seconds that some ranks wait for others before rank 0 warns; 0: it never does."""
    stall_shutdown: float | None = None
    """Seconds of such waiting after which the job ends; 0: it never does."""
    hosts: tuple[HostSlots, ...] = ()
    """Names of this machine with slots, filled in this order; each counts as a host. Empty: this machine is one."""
    timestamps: bool = False
    """Whether the time stands before the prefix of every line."""
    prefixes_in_files: bool = False
    """Whether files of the output directory get lines as they are shown, not the bytes as the worker wrote them."""

    def __post_init__(self) -> None:
        if self.num_proc is not None and self.num_proc < 1:
            raise SpecError(f"{self.num_proc} workers cannot be started", "-np takes a number from 1 on, or auto")
        if self.start_timeout <= 0:
            raise SpecError(f"a start timeout of {self.start_timeout:g} s leaves no time to start")
        if self.fusion_threshold_mb is not None and self.fusion_threshold_mb < 0:
            raise SpecError(f"a fusion threshold of {self.fusion_threshold_mb} MB is negative", "0 turns fusion off")
        if self.transport is not None and self.transport not in TRANSPORTS:
            raise SpecError(f"there is no transport {self.transport!r}", f"choose from {', '.join(TRANSPORTS)}")
        if self.log_level is not None and self.log_level not in LOG_LEVELS:
            raise SpecError(f"there is no log level {self.log_level!r}", f"choose from {', '.join(LOG_LEVELS)}")
        for seconds in (self.stall_warning, self.stall_shutdown):
            if seconds is not None and not 0 <= seconds < math.inf:
                raise SpecError(f"{seconds:g} s is no time to wait for stalled ranks", "0 waits without an end")
        if self.autotune_log is not None and not self.autotune:
            raise SpecError("--autotune-log-file logs nothing without autotuning", "add --autotune")
        if self.timeline_mark_cycles and self.timeline is None:
            raise SpecError("--timeline-mark-cycles marks nothing without a timeline", "add --timeline FILE")


def read_start_timeout(given: float | None, environment: Mapping[str, str]) -> float:
    """Return the start timeout in seconds: as given, from the environment, or the default.

    Raises:
        SpecError: the variable is not a number.
    """
    if given is not None:
        return given
    for name in ("FARANDOLE_START_TIMEOUT", "HOROVOD_START_TIMEOUT"):
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
    """Find out before anything starts whether the command can be started.

    Raises:
        SpecError: there is no such program, or the script that a Python interpreter is to run is not there.
    """
    program = command[0]
    path = Path(directory, program)
    if "/" not in program:
        if shutil.which(program, path=environment.get("PATH", os.defpath)) is None:
            raise SpecError(f"there is no program {program!r} on the PATH", _hint_for_missing_program(path, command))
    elif not path.exists():
        raise SpecError(f"there is no program {program!r} (in {directory})", "check the path")
    elif path.is_dir() or not os.access(path, os.X_OK):
        raise SpecError(f"{program!r} is not a program that can be run", _hint_for_missing_program(path, command))
    script = python_script(command)
    if script is not None and not Path(directory, script).exists():
        raise SpecError(f"there is no script {script!r} (in {directory})", "check the path")


def _hint_for_missing_program(path: Path, command: Sequence[str]) -> str:
    if path.suffix == ".py" and path.exists():
        return f"write: python {' '.join(command)}"
    if command[0].startswith("-"):
        return f"options stand before the command; {command[0]} is not one of them. See farandole run --help"
    if path.is_file():
        return f"make it executable (chmod +x {command[0]}) and call it with its path"
    return "check the spelling, and that the right environment is active"


def python_script(command: Sequence[str]) -> str | None:
    """Return the script in `python [options] script ...`; None when there is none to check.

    Example:
        >>> python_script(["python3.11", "-u", "-W", "error", "train.py", "--lr", "1"])
        'train.py'
    """
    if not re.fullmatch(r"(python|pypy)[0-9.]*", Path(command[0]).name):
        return None
    words = iter(command[1:])
    for word in words:
        if word == "-" or word.startswith("--help") or word.startswith("--version"):
            return None
        if not word.startswith("-"):
            return word
        if word in ("-W", "-X", "--check-hash-based-pycs"):
            next(words, None)
        elif not word.startswith("--") and not word.startswith(("-W", "-X")) and set(word) & set("cmVh?"):
            return None
    return None

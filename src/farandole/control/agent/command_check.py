"""Checks whether a command can be started on this host."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence

from farandole.control.jobs.errors import BadSpec


def what_is_wrong(command: Sequence[str], directory: str, environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Return why a command cannot be started in a directory, and a hint; None if it can."""
    program = command[0]
    path = os.path.join(directory, program)
    if not os.path.isdir(directory):
        return f"there is no folder {directory}", "put the code there, or send it: --ship ."
    if "/" not in program:
        if shutil.which(program, path=environment.get("PATH", os.defpath)) is None:
            return f"there is no program {program!r} on the PATH", _hint_for_missing_program(path, command)
    elif not os.path.exists(path):
        return f"there is no program {program!r} (in {directory})", "check the path"
    elif os.path.isdir(path) or not os.access(path, os.X_OK):
        return f"{program!r} is not a program that can be run", _hint_for_missing_program(path, command)
    return _missing_script(command, directory)


def unreadable_tuning(path: str) -> tuple[str, str] | None:
    """Return why a file with the results of autotuning cannot be read, and a hint; None if it can."""
    try:
        with open(path, "rb"):
            return None
    except OSError as error:
        return (
            f"the results of autotuning cannot be read: {path}: {error.strerror}",
            "correct the path of --tuning, or add --autotune, which writes this file",
        )


def check_script(command: Sequence[str], directory: str) -> None:
    """Check that the script of a Python command exists.

    Args:
        command: the command of a job.
        directory: the folder that it will run in, which hosts share with this machine.

    Raises:
        BadSpec: the script does not exist.
    """
    if wrong := _missing_script(command, directory):
        raise BadSpec(*wrong)


def _missing_script(command: Sequence[str], directory: str) -> tuple[str, str] | None:
    """Return that the script of a Python command does not exist, and a hint; None if it exists."""
    if is_python(command[0]) and next((word for word in command[1:] if word != "-u"), "-") == "-":
        return (
            f"{' '.join(command)} would read a script from the standard input, which workers do not have",
            f"save the script in a file, and write: {command[0]} FILE",
        )
    script = python_script(command)
    if script is not None and not os.path.exists(os.path.join(directory, script)):
        return f"there is no script {script!r} (in {directory})", "check the path"
    return None


def _hint_for_missing_program(path: str, command: Sequence[str]) -> str:
    if path.endswith(".py") and os.path.exists(path):
        return f"write: python {' '.join(command)}"
    if command[0].startswith("-"):
        return f"options come before the command, and {command[0]} is not one of them; farandole run --help lists them"
    if len(command) == 1 and len(words := command[0].split()) > 1:
        return f"write the command without quotes: {' '.join(words)}"
    if os.path.isfile(path):
        return f"make it executable (chmod +x {command[0]}) and call it with its path"
    return "check the spelling, and that the right environment is active"


def is_python(program: str) -> bool:
    """Return whether a program is a Python interpreter, by its name."""
    return re.fullmatch(r"(python|pypy)[0-9.]*", os.path.basename(program)) is not None


def python_script(command: Sequence[str]) -> str | None:
    """Return the script in `python [options] script ...`; None if there is none to check.

    Example:
        >>> python_script(["python3.11", "-u", "-W", "error", "train.py", "--lr", "1"])
        'train.py'
    """
    if not is_python(command[0]):
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

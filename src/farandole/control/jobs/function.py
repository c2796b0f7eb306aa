"""A Python function as a job: pickled into files of a directory that the job's hosts share, with its results beside it.

    DIRECTORY/call           what is called, by cloudpickle: written before the job is submitted
    DIRECTORY/result-N       what worker N came to: a pickled pair of whether it returned, and its value or exception

Workers run this module: `python -m farandole.control.jobs.function DIRECTORY`.
"""

from __future__ import annotations

import os
import pickle
import re
import secrets
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from farandole.control.jobs.errors import Refused

FOLDER = ".farandole-calls"
"""In the directory where the job is submitted, if no other is named."""
_RESULT = "result-"
_NUMBERS = ("FARANDOLE_WORKER", "RANK", "SLURM_PROCID")


def write_call(function: Callable[..., Any], arguments: Sequence[object], shared: Path | None) -> Path:
    """Write a call into a directory of its own, and return that.

    Raises:
        Refused: it cannot be pickled, or not be written.
    """
    import cloudpickle  # type: ignore[import-untyped]

    try:
        # The path first, in a pickle of its own: unpickling the rest may import modules from it.
        call = pickle.dumps((sys.path, cloudpickle.dumps((function, tuple(arguments)))))
    except Exception as error:  # Whatever an attribute of the function or of an argument raises.
        raise Refused(
            f"the function cannot be sent: {type(error).__name__}: {error}",
            "leave open files, locks and connections out of it, or submit a script",
        ) from error
    folder = (shared or Path.cwd() / FOLDER).absolute() / secrets.token_hex(8)
    try:
        folder.mkdir(mode=0o700, parents=True)  # What is unpickled from it must be nobody else's.
        (folder / "call").write_bytes(call)
    except OSError as error:
        raise Refused(f"{folder} cannot be written: {error.strerror}", "name another one: shared=DIRECTORY") from error
    return folder


def command_of(folder: Path) -> list[str]:
    """Return what the job's workers run."""
    return [sys.executable, "-m", "farandole.control.jobs.function", str(folder)]


def results(folder: Path) -> list[tuple[bool, Any]]:
    """Return what workers came to, in their order: whether each has returned, and its value or exception."""
    found = {
        int(path.name.removeprefix(_RESULT)): path.read_bytes()
        for path in folder.iterdir()
        if re.fullmatch(rf"{_RESULT}\d+", path.name)
    }
    return [pickle.loads(found[number]) for number in sorted(found)]


def main() -> None:
    """Call the function, and write down what it came to.

    Raises:
        Exception: what the function raised.
    """
    folder = Path(sys.argv[1])
    number = next((os.environ[name] for name in _NUMBERS if os.environ.get(name, "").isdecimal()), "0")
    result = folder / f"{_RESULT}{number}"
    sys.path[:], call = pickle.loads((folder / "call").read_bytes())
    function, arguments = pickle.loads(call)
    try:
        value = function(*arguments)
    except Exception as error:
        _write(result, False, error)
        raise
    _write(result, True, value)


def _write(path: Path, returned: bool, value: Any) -> None:
    import cloudpickle

    try:
        content = cloudpickle.dumps((returned, value))
    except Exception as error:
        if returned:
            raise
        content = cloudpickle.dumps((False, RuntimeError(f"{type(value).__name__}, which cannot be sent: {error}")))
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(content)
    draft.replace(path)


if __name__ == "__main__":
    main()

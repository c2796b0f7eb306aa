"""A Python function as a job: the call and its results are pickled into a directory that the job's hosts share.

    DIRECTORY/call           the function and its arguments, by cloudpickle; written before the job is submitted
    DIRECTORY/result-RUN-N   worker N's outcome: a pickled pair of whether it returned, and its value or exception

A place may run a job again: after it was suspended, or because it may be tried several times. RUN is different each
time, and workers first remove the outcomes of earlier runs, which are over then.

The directory is removed when a job is refused, or is over and its results have been read. Workers run this module:
`python -m farandole.control.jobs.function DIRECTORY`.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import secrets
import shutil
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from farandole.control.jobs.errors import Refused
from farandole.errors import lost_rank_behind

FOLDER = ".farandole-calls"
"""Default parent directory of calls, in the directory where the job is submitted."""
_RESULT = "result-"
_NUMBERS = ("FARANDOLE_WORKER", "RANK", "SLURM_PROCID")


def write_call(function: Callable[..., Any], arguments: Sequence[object], shared: Path | None) -> Path:
    """Write a call into a new directory, and return that directory.

    Args:
        function: the function that each worker calls.
        arguments: its positional arguments.
        shared: parent of the new directory, which all hosts share; None: `FOLDER` in the current directory.

    Raises:
        Refused: the call cannot be pickled or written.
    """
    from farandole.base import portable

    try:
        # The path first, in a pickle of its own: unpickling the rest may import modules from it.
        call = pickle.dumps((sys.path, portable.dumps((function, tuple(arguments)))))
    except Exception as error:  # Pickling runs code of the function's and the arguments' classes.
        raise Refused(
            f"the function cannot be sent: {type(error).__name__}: {error}",
            "leave open files, locks and connections out of it, or submit a script",
        ) from error
    folder = (shared or Path.cwd() / FOLDER).absolute() / secrets.token_hex(8)
    try:
        folder.mkdir(mode=0o700, parents=True)  # Only this user may write to it, because its content is unpickled.
        (folder / "call").write_bytes(call)
    except OSError as error:
        raise Refused(f"{folder} cannot be written: {error.strerror}", "use another: shared=DIRECTORY") from error
    return folder


def command_of(folder: Path) -> list[str]:
    """Return the command that the job's workers run."""
    return [sys.executable, "-m", "farandole.control.jobs.function", str(folder)]


def results(folder: Path) -> list[tuple[bool, Any]]:
    """Return the workers' outcomes in their order: whether the function returned, and its value or exception.

    For an outcome that cannot be unpickled in this process, the exception is that of unpickling.
    """
    found = {
        int(name[1]): path.read_bytes()
        for path in folder.iterdir()
        if (name := re.fullmatch(rf"{_RESULT}[0-9a-f]+-(\d+)", path.name))
    }
    return [_unpickled(found[number]) for number in sorted(found)]


def remove(folder: Path) -> None:
    """Remove the directory of a call, and the default parent directory if it is empty then."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.parent.name == FOLDER:
        with suppress(OSError):
            folder.parent.rmdir()


def first_cause(outcomes: Sequence[tuple[bool, Any]]) -> BaseException | None:
    """Return an exception that the function raised; if possible, none that follows from the loss of another worker.

    Args:
        outcomes: the return value of `results`.
    """
    raised = [value for returned, value in outcomes if not returned]
    return next((error for error in raised if lost_rank_behind(error) is None), raised[0] if raised else None)


def _unpickled(content: bytes) -> tuple[bool, Any]:
    try:
        returned, value = pickle.loads(content)
    except Exception as error:  # Its class raises what it likes, or is not installed here.
        return False, error
    return returned, value


def main() -> None:
    """Call the function, and write its outcome to the shared directory.

    Raises:
        Exception: the exception of the function.
    """
    from farandole.base import portable

    folder = Path(sys.argv[1])
    number = next((os.environ[name] for name in _NUMBERS if os.environ.get(name, "").isdecimal()), "0")
    run = f"{_RESULT}{hashlib.sha256(os.environ.get('FARANDOLE_JOB', '').encode()).hexdigest()[:12]}-"
    for path in folder.glob(f"{_RESULT}*"):
        if not path.name.startswith(run):
            path.unlink(missing_ok=True)  # Other workers remove it, too.
    result = folder / f"{run}{number}"
    sys.path[:], call = pickle.loads((folder / "call").read_bytes())
    function, arguments = pickle.loads(call)
    try:
        _write(result, portable.dump_result(function(*arguments)))
    except Exception as error:
        told = traceback.format_exception_only(error)[-1].strip()
        _write(result, portable.dump_exception(error, RuntimeError(f"{told} (this exception cannot be pickled)")))
        raise


def _write(path: Path, content: bytes) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(content)
    draft.replace(path)


if __name__ == "__main__":
    main()

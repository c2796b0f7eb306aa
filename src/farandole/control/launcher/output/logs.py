"""The files of an output directory: `rank.<n>/stdout`, `stderr` and `error.json`, and those of earlier runs.

In an elastic job, where ranks change, the folder is `worker.<n>` with the worker's number.

A run never overwrites the output of another: it first moves the folders that it finds to `attempt_<k>`, with the
next free number, so that the latest run is always in the same place and the earliest in `attempt_0`.
"""

from __future__ import annotations

import errno
import re
from pathlib import Path

from farandole.errors import SpecError

_WORKER_FOLDER = re.compile(r"(?:rank|worker)\.\d+")
_ATTEMPT_FOLDER = re.compile(r"attempt_(\d+)")

_HINTS = {
    errno.ENOSPC: "free some space there, or use another --output-dir",
    errno.EDQUOT: "your quota there is used up: free some space, or use another --output-dir",
    errno.EMFILE: "every worker needs two open files: raise the limit: ulimit -n 65536",
    errno.EACCES: "you may not write there: use another --output-dir",
    errno.EROFS: "the file system is read-only: use another --output-dir",
    errno.ENOTDIR: "a part of this path is a file: use another --output-dir",
    errno.EEXIST: "a file of this name exists: use another --output-dir",
}


def is_output_folder(name: str) -> bool:
    """Return whether a folder of an output directory contains output of workers, of this run or an earlier one."""
    return bool(_WORKER_FOLDER.fullmatch(name) or _ATTEMPT_FOLDER.fullmatch(name))


def rank_folder(directory: Path, rank: int, size: int) -> Path:
    """Return the folder of a rank's files; ranks are zero-padded to one width."""
    return directory / f"rank.{rank:0{len(str(size - 1))}}"


def worker_folder(directory: Path, worker: int) -> Path:
    """Return the folder of a worker's files in an elastic job, unpadded: the final number of workers is unknown."""
    return directory / f"worker.{worker}"


def begin_attempt(directory: Path) -> Path | None:
    """Prepare the output directory for a run, and return the new folder of an earlier run's output, if there was any.

    Raises:
        SpecError: the directory cannot be created or written to.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        earlier = sorted(path for path in directory.iterdir() if _WORKER_FOLDER.fullmatch(path.name))
        if not earlier:
            return None
        attempt = _next_attempt(directory)
        for path in earlier:
            path.rename(attempt / path.name)
        return attempt
    except OSError as error:
        raise unusable(error) from None


def unusable(error: OSError) -> SpecError:
    """Return the error for an output directory that cannot be used, with a hint."""
    return SpecError(
        f"the output directory cannot be used: {error.filename}: {error.strerror}",
        _HINTS.get(error.errno or 0, "check the path"),
    )


def _next_attempt(directory: Path) -> Path:
    numbers = [int(found[1]) for path in directory.iterdir() if (found := _ATTEMPT_FOLDER.fullmatch(path.name))]
    number = max(numbers, default=-1) + 1
    while True:
        attempt = directory / f"attempt_{number}"
        try:
            attempt.mkdir()
            return attempt
        except FileExistsError:  # Another run has used this number first.
            number += 1

"""The files of an output directory: `rank.<n>/stdout`, `stderr` and `error.json`, and those of earlier runs.

In an elastic job, where a worker's rank changes, it is `worker.<n>` with the worker's number.

A run never writes over what another has left: it first moves the folders that it finds into `attempt_<k>`, with the
next number that is free, so that the latest run is always in the same place and the earliest in `attempt_0`.
"""

from __future__ import annotations

import errno
import re
from pathlib import Path

from farandole.errors import SpecError

_WORKER_FOLDER = re.compile(r"(?:rank|worker)\.\d+")
_ATTEMPT_FOLDER = re.compile(r"attempt_(\d+)")

_HINTS = {
    errno.ENOSPC: "free some space there, or choose another --output-dir",
    errno.EDQUOT: "your quota there is used up: free some space, or choose another --output-dir",
    errno.EMFILE: "every worker needs two open files: raise the limit, such as with: ulimit -n 65536",
    errno.EACCES: "you may not write there: choose another --output-dir",
    errno.EROFS: "nobody can write there: choose another --output-dir",
    errno.ENOTDIR: "a part of this path is a file: choose another --output-dir",
    errno.EEXIST: "a file of this name is in the way: choose another --output-dir",
}


def rank_folder(directory: Path, rank: int, size: int) -> Path:
    """Return where the files of a rank are; ranks are padded with zeros to one width."""
    return directory / f"rank.{rank:0{len(str(size - 1))}}"


def worker_folder(directory: Path, worker: int) -> Path:
    """Return where the files of a worker of an elastic job are; how many there will be is not known."""
    return directory / f"worker.{worker}"


def begin_attempt(directory: Path) -> Path | None:
    """Make the output directory ready for a run, and return where what an earlier run left there is now, if any did.

    Raises:
        SpecError: it cannot be made or written to.
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
    """Return what to raise when the output directory cannot be used, with what to do about it."""
    return SpecError(f"the output directory cannot be used: {error}", _HINTS.get(error.errno or 0, "check the path"))


def _next_attempt(directory: Path) -> Path:
    numbers = [int(found[1]) for path in directory.iterdir() if (found := _ATTEMPT_FOLDER.fullmatch(path.name))]
    number = max(numbers, default=-1) + 1
    while True:
        attempt = directory / f"attempt_{number}"
        try:
            attempt.mkdir()
            return attempt
        except FileExistsError:  # Another run has just been quicker.
            number += 1

"""Counts, sizes and errors as people read them, and Horovod's words where programs look for them."""

from __future__ import annotations

SIZE_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
"""Number of bytes of each unit letter in a size."""

HOROVOD_FAILED = (
    "Horovod detected that one or more processes exited with non-zero status, thus causing the job to be terminated."
)
HOROVOD_FAILED_FIRST = HOROVOD_FAILED + " The first process to do so was:\nProcess name: {name}\nExit code: {code}\n"


def horovods_failure(rank: int | None, code: int) -> str:
    """Return the lines with which Horovod reports the failure of a job.

    Args:
        rank: the rank that failed first; None: the job had another reason, or the worker was in no world.
        code: the exit code of that rank.
    """
    return f"{HOROVOD_FAILED}\n" if rank is None else HOROVOD_FAILED_FIRST.format(name=rank, code=code)


def error_lines(message: str, hint: str = "") -> str:
    """Return an error in the form that commands print: the problem, and on a separate line the next step.

    Example:
        >>> error_lines("no job is running", "start one")
        'error: no job is running\\nhint: start one'
    """
    return f"error: {message}\nhint: {hint}" if hint else f"error: {message}"


def count(number: int, noun: str) -> str:
    """Format a number of things, such as `1 worker` or `2 workers`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def bytes_text(number: int) -> str:
    """Format a number of bytes in the largest unit that fits.

    Example:
        >>> bytes_text(1536 * 1024 * 1024)
        '1.5 GiB'
    """
    for unit, factor in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if number >= factor:
            return f"{number / factor:.4g} {unit}"
    return f"{number} B"

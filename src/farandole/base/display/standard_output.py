"""Standard output that a service does not use, and streams that take no more."""

from __future__ import annotations

import contextlib
import os
import sys


def discard_standard_output() -> None:
    """Discard everything that this process and its libraries write to descriptor 1 from now on.

    The solver of the adaptive policy (HiGHS) prints messages there, which none of its options turns off. They would
    clutter the logs of a queue's daemon and of an operator.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def log_line(text: str) -> None:
    """Write a line to standard error if possible: a service must not end because its log is on a full disk."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def is_output_lost() -> bool:
    """Return whether buffered text cannot be written to standard output, as on a full disk."""
    try:
        print(end="", flush=True)  # Unlike sys.stdout.flush(), works if standard output is closed.
    except OSError:
        return True
    return False

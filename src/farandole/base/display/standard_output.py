"""Standard output that a service does not use, or that takes no more."""

from __future__ import annotations

import os


def discard_standard_output() -> None:
    """Discard everything that this process and its libraries write to descriptor 1 from now on.

    The solver of the adaptive policy (HiGHS) prints messages there, which none of its options turns off. They would
    clutter the logs of a queue's daemon and of an operator.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def is_output_lost() -> bool:
    """Return whether buffered text cannot be written to standard output, as on a full disk."""
    try:
        print(end="", flush=True)  # Unlike sys.stdout.flush(), works if standard output is closed.
    except OSError:
        return True
    return False

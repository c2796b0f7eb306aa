"""Silencing the standard output of services that do not use it."""

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

"""Standard output of services that have nothing to print there."""

from __future__ import annotations

import os


def discard_standard_output() -> None:
    """Discard what this process and its libraries write to descriptor 1 from now on.

    The solver of the adaptive policy (HiGHS) prints notes of its own there, which no option of its turns off; they
    would stand in the logs of a queue's daemon and of an operator.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(nowhere, 1)
    os.close(nowhere)

"""How long a world that is not complete waits for workers to join: the same for jobs of a fixed size and elastic ones.

A worker's start takes as long as its script needs before `init()`: importing a framework on a busy machine may take
minutes. So nothing is waited for before a worker waits in `init()`. Then the time runs, and begins anew with every
worker that joins, or is started. A worker whose process ends is not waited for.
"""

from __future__ import annotations

from farandole.control.roster.events import Hold

START = "start"
_HINT = (
    "See what they printed last: do they call init(), or do they need longer to start? --start-timeout (or "
    "FARANDOLE_START_TIMEOUT) gives more time."
)


def hold_for_arrivals(missing: str, number: int, here: int, seconds: float) -> Hold:
    """Return what a job waits for whose workers have not all joined.

    Args:
        missing: the names of those that have not.
        number: how many these are.
        here: how many workers wait in `init()`; 0: nothing is waited for.
        seconds: how long to wait after the latest arrival.
    """
    if not here:
        return Hold("")
    # Each worker counts once when it is started, and once more when it joins.
    return Hold(START, f"waits for {missing} to join", seconds, arrivals=(number + here) + here)


def too_late(missing: str, number: int, here: int, seconds: float) -> str:
    """Return why a world begins without some workers, or not at all; the arguments are those of `hold_for_arrivals`.

    Example:
        >>> too_late("ranks 1-2", 2, 3, 30.0)[:73]
        '2 of 5 workers did not join within 30 s of the latest arrival: ranks 1-2.'
    """
    latest = f"within {seconds:g} s of the latest arrival"
    return f"{number} of {number + here} workers did not join {latest}: {missing}. {_HINT}"

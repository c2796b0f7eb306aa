"""How long an incomplete world waits for workers to join, in jobs of fixed size and in elastic jobs.

Workers may take minutes to reach `init()`, for example to import a framework on a busy machine. So the time runs only
once a worker waits in `init()`, and it restarts with every worker that joins or is started. A worker whose process has
ended is not waited for.
"""

from __future__ import annotations

from collections.abc import Callable

from farandole.control.roster.events import Hold

START = "start"
MANY = 64
"""Number of workers above which a job that waits for them gives their number only. Their names change with each join,
and take the longer the more workers there are."""
_HINT = (
    "Check their latest output: do they call init(), or do they need longer to start? --start-timeout (or "
    "FARANDOLE_START_TIMEOUT) gives them more time."
)


def hold_for_arrivals(missing: Callable[[], str], number: int, here: int, seconds: float) -> Hold:
    """Return the hold of a job whose workers have not all joined.

    Args:
        missing: returns the names of the workers that have not joined.
        number: number of workers that have not joined.
        here: number of workers that wait in `init()`; 0: the time does not run.
        seconds: seconds to wait after the latest arrival.
    """
    if not here:
        return Hold("")
    # The number grows when a worker is started, and again when it joins.
    named = f"{number} workers" if number > MANY else missing()
    return Hold(START, f"waits for {named} to join", seconds, arrivals=(number + here) + here)


def too_late(missing: str, number: int, here: int, seconds: float) -> str:
    """Return why a world begins without some workers, or not at all.

    Args:
        missing: names of the workers that have not joined.
        number: number of workers that have not joined.
        here: number of workers that wait in `init()`.
        seconds: seconds for which the world has waited after the latest arrival.

    Example:
        >>> too_late("ranks 1-2", 2, 3, 30.0)[:73]
        '2 of 5 workers did not join within 30 s of the latest arrival: ranks 1-2.'
    """
    latest = f"within {seconds:g} s of the latest arrival"
    return f"{number} of {number + here} workers did not join {latest}: {missing}. {_HINT}"

"""Builds the `Refused` errors that have the same wording at every place."""

from __future__ import annotations

from farandole.control.jobs.errors import Refused
from farandole.control.jobs.status import JobState


def is_over(name: str, state: JobState, hint: str = "submit it again") -> Refused:
    """Return the error for an operation on a job that is over."""
    return Refused(f"job {name} is over: it {state.in_words}", hint)


def cannot_be_suspended(name: str) -> Refused:
    """Return the error for suspending a job that would lose its progress."""
    return Refused(
        f"job {name} cannot be suspended: it has no checkpoint, and would lose its progress",
        "submit it with --checkpoint or --suspension requeue; farandole cancel ends it",
    )


def is_not_suspended(name: str, state: JobState) -> Refused:
    """Return the error for resuming a job that is not suspended."""
    return Refused(f"job {name} is not suspended: it {state.in_words}", "farandole status shows its state")


def check_workers(name: str, workers: int, least: int = 1, most: int | None = None) -> None:
    """Check that a job can run with a number of workers.

    Args:
        name: name of the job.
        workers: requested number of workers.
        least: smallest number that the job can run with.
        most: largest number that it can use; None: any.

    Raises:
        Refused: the number is out of range.
    """
    if most is not None and not least <= workers <= most:
        raise Refused(
            f"job {name} runs with {least} to {most} workers, not with {workers}",
            f"it was submitted with -np {least}:{most}",
        )
    if workers < least:
        raise Refused(f"a job cannot run with {workers} workers", f"at least {least}")

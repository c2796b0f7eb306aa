"""What can go wrong with a job, wherever it runs.

JobError (FarandoleError, ValueError)
├── BadSpec       a job cannot be described like that
├── UnknownJob    there is no job of that name (or nobody may know of it)
├── NotAllowed    this user may not do that
├── Refused       the place does not take it: too large, a quota, a state in which it cannot be done
└── Unreachable   whatever runs jobs there does not answer
"""

from __future__ import annotations

from farandole.errors import FarandoleError


class JobError(FarandoleError, ValueError):
    """Something cannot be done with a job.

    Attributes:
        message: what is wrong.
        hint: what to do about it.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message} (hint: {hint})" if hint else message)
        self.message = message
        self.hint = hint


class BadSpec(JobError):
    """A job cannot be described like that."""


class UnknownJob(JobError):
    """There is no job of that name."""


class NotAllowed(JobError):
    """This user may not do that."""


class Refused(JobError):
    """The place does not take it, or cannot do it in the state that the job is in."""


class Unreachable(JobError):
    """Whatever runs jobs there does not answer."""


KINDS: dict[str, type[JobError]] = {
    kind.__name__: kind for kind in (JobError, BadSpec, UnknownJob, NotAllowed, Refused, Unreachable)
}
"""By name, for services that send errors to their clients."""

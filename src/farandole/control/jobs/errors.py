"""Errors about jobs, the same for every place.

JobError (FarandoleError, ValueError)
├── BadSpec       the job's specification is not valid
├── UnknownJob    there is no job of that name, or the user may not see it
├── NotAllowed    the user is not allowed to do this
├── Refused       the place refuses the request: too large a job, a quota, or a state that does not allow it
└── Unreachable   the service that runs jobs there does not answer
"""

from __future__ import annotations

from farandole.errors import FarandoleError, WithHint


class JobError(WithHint, FarandoleError, ValueError):
    """An operation on a job failed."""


class BadSpec(JobError):
    """The job's specification is not valid."""


class UnknownJob(JobError):
    """There is no job of that name, or the user may not see it."""


class NotAllowed(JobError):
    """The user is not allowed to do this."""


class Refused(JobError):
    """The place refuses the job, or the job's state does not allow the operation."""


class Unreachable(JobError):
    """The service that runs jobs at this place does not answer."""


KINDS: dict[str, type[JobError]] = {
    kind.__name__: kind for kind in (JobError, BadSpec, UnknownJob, NotAllowed, Refused, Unreachable)
}
"""Error classes by name, for services that send errors to their clients."""

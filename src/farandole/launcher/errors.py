"""What the launcher raises.

LaunchError (RuntimeError)
├── SpecError (ValueError)   what was asked for cannot be started; nothing was
└── JobFailed                workers ran, and the job did not end well
"""

from __future__ import annotations

from farandole.errors import Picklable


class LaunchError(Picklable, RuntimeError):
    """A job could not be started, or did not end well."""


class SpecError(LaunchError, ValueError):
    """What was asked for cannot be started. Nothing was.

    Attributes:
        hint: what to do about it.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message} (hint: {hint})" if hint else message)
        self.message = message
        self.hint = hint


class JobFailed(LaunchError):
    """Workers ran, and the job did not end well. The text is the whole report of the first failure.

    Attributes:
        rank: the rank that failed first, or None when the job was interrupted.
        exit_code: as a shell would give it: the worker's own, or 128 + the signal that ended it.
    """

    def __init__(self, report: str, rank: int | None, exit_code: int) -> None:
        super().__init__(report)
        self.rank = rank
        self.exit_code = exit_code

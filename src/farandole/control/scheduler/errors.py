"""What the scheduler and the simulator raise.

SchedulerError (FarandoleError, ValueError)
├── UnknownPolicyError   no policy has that name
├── ClusterError         a cluster cannot be described like that
└── TraceError           a trace or a profile has something in it that cannot be read
"""

from __future__ import annotations

from farandole.errors import FarandoleError


class SchedulerError(FarandoleError, ValueError):
    """Something was asked for that no schedule can have.

    Attributes:
        message: what is wrong.
        hint: what to do about it.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message} (hint: {hint})" if hint else message)
        self.message = message
        self.hint = hint


class UnknownPolicyError(SchedulerError):
    """No policy has that name."""


class ClusterError(SchedulerError):
    """A cluster cannot be described like that."""


class TraceError(SchedulerError):
    """A trace or a profile has something in it that cannot be read; the message names the file and the line."""

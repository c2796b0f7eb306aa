"""Errors of the scheduler and the simulator.

SchedulerError (FarandoleError, ValueError)
├── UnknownPolicyError   no policy has that name
├── ClusterError         the description of a cluster is not valid
└── TraceError           a trace or a profile cannot be read
"""

from __future__ import annotations

from farandole.errors import FarandoleError


class SchedulerError(FarandoleError, ValueError):
    """The scheduler's input is not valid.

    Attributes:
        message: one sentence about the problem.
        hint: the next step for the user; "": none.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message} (hint: {hint})" if hint else message)
        self.message = message
        self.hint = hint


class UnknownPolicyError(SchedulerError):
    """No policy has that name."""


class ClusterError(SchedulerError):
    """The description of a cluster is not valid."""


class TraceError(SchedulerError):
    """A trace or a profile cannot be read; the message names the file and the line."""

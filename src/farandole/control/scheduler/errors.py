"""Errors of the scheduler and the simulator.

SchedulerError (FarandoleError, ValueError)
├── UnknownPolicyError   no policy has that name
├── ClusterError         the description of a cluster is not valid
└── TraceError           a trace or a profile cannot be read
"""

from __future__ import annotations

from farandole.errors import FarandoleError, WithHint


class SchedulerError(WithHint, FarandoleError, ValueError):
    """The scheduler's input is not valid."""


class UnknownPolicyError(SchedulerError):
    """No policy has that name."""


class ClusterError(SchedulerError):
    """The description of a cluster is not valid."""


class TraceError(SchedulerError):
    """A trace or a profile cannot be read; the message names the file and the line."""

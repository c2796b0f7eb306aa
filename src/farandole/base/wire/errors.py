"""Errors between two processes of a job.

WireError (ConnectionError)
├── ConnectionLost         the other side closed the connection, or the network failed
├── AuthenticationFailed   the other side does not hold this job's secret
├── BadMessage             a frame is too long, or is not a valid message at this point
└── WireTimeout            the time limit passed; also a TimeoutError
"""

from __future__ import annotations


class WireError(ConnectionError):
    """The communication between two processes of a job failed."""


class ConnectionLost(WireError):
    """The other side closed the connection, or the network failed.

    Attributes:
        unread: whether the kernel reports that the other side ended before it had read everything sent to it.
    """

    unread = False


class AuthenticationFailed(WireError):
    """The other side does not hold this job's secret."""


class BadMessage(WireError):
    """A frame is too long, or is not a valid message at this point."""


class WireTimeout(WireError, TimeoutError):
    """The time limit passed without the expected data."""

"""Errors between two processes of a job.

WireError (ConnectionError)
├── ConnectionLost         the other side closed, or the network broke
├── AuthenticationFailed   the other side does not hold this job's secret
├── BadMessage             a frame is too long, or is not a message that belongs here
└── WireTimeout            nothing came in time; also a TimeoutError
"""

from __future__ import annotations


class WireError(ConnectionError):
    """Something on the way between two processes of a job went wrong."""


class ConnectionLost(WireError):
    """The other side closed the connection, or the network broke.

    Attributes:
        unread: whether the kernel says that the other side ended before it had read all that was sent to it.
    """

    unread = False


class AuthenticationFailed(WireError):
    """The other side does not hold this job's secret."""


class BadMessage(WireError):
    """A frame is too long, or is not a message that belongs here."""


class WireTimeout(WireError, TimeoutError):
    """Nothing came in time."""

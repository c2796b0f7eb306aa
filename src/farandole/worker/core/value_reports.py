"""`farandole.report`: a worker sends values to the program that has started the job."""

from __future__ import annotations

import os
import threading
import warnings
from typing import Any

from farandole.base.external_launcher import find
from farandole.base.wire.rendezvous import RendezvousError
from farandole.base.wire.roster_client import RosterClient
from farandole.errors import InvalidRequestError

MOST_BYTES = 16 * 1024 * 1024


def report(value: Any) -> None:
    """Send a value to the program that has started this job, which may have a callback for it.

    It is meant for progress, such as the loss of each epoch, and may be lost with the launcher. In a process that
    farandole's launcher has not started, the first call warns, and nothing else happens.

    Args:
        value: anything that cloudpickle can pickle, up to 16 MiB. Tensors of a GPU arrive on the receiver's GPU, or in
            its memory if it has none.

    Raises:
        InvalidRequestError: the value is larger.

    Example:
        >>> import farandole
        >>> farandole.report({"epoch": 1, "loss": 0.25})
    """
    from farandole.base import portable

    payload = portable.dumps(value)
    if len(payload) > MOST_BYTES:
        raise InvalidRequestError(
            f"a reported value has {len(payload)} bytes when pickled, and at most {MOST_BYTES} are allowed. Report a "
            "summary, or the path of a file."
        )
    _reporter.send(payload)


class _Reporter:
    """The connection of this process to its job's roster, for values."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._client: RosterClient | None = None
        self._has_warned = False

    def send(self, payload: bytes) -> None:
        with self._lock:
            # The launcher of an elastic job may have been replaced since the last value.
            if not self._sent(payload) and not self._sent(payload) and not self._has_warned:
                self._has_warned = True
                warnings.warn("farandole.report: no launcher of farandole accepts the value", stacklevel=3)

    def _sent(self, payload: bytes) -> bool:
        try:
            self._client = self._client or _connect()
            if self._client is None:
                return False
            self._client.report_value(payload)
            return True
        except RendezvousError:
            self._client = None
            return False

    def forget(self) -> None:
        """Drop the parent's connection in a forked child."""
        self._lock = threading.Lock()
        self._client = None


def _connect() -> RosterClient | None:
    """Return a connection to the roster of this worker's job.

    Raises:
        RosterUnreachable: it does not answer.
    """
    place = find(os.environ)
    if place is None or not (roster := os.environ.get("FARANDOLE_ROSTER")):
        return None
    secret = bytes.fromhex(os.environ.get("FARANDOLE_SECRET", ""))
    return RosterClient.connect(roster, secret, worker=place.rank)


_reporter = _Reporter()
os.register_at_fork(after_in_child=_reporter.forget)

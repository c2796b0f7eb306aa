"""Reports the progress of this worker to the launcher, for its status line."""

from __future__ import annotations

import threading

from farandole.base.wire.rendezvous import RendezvousError
from farandole.base.wire.roster_client import RosterClient
from farandole.worker.core.session import Session
from farandole.worker.observe.stalls import StallRecord


class ProgressReporter:
    """A thread that reports steps and waiting times at regular intervals, until the session ends."""

    def __init__(self, session: Session, roster: RosterClient, stalls: StallRecord, metrics: str) -> None:
        """Start the thread.

        Args:
            session: the session whose steps and waiting times are reported, at the interval of `settings.progress`.
            roster: the roster that gets the reports.
            stalls: this worker's record of stalls, which is also reported.
            metrics: the address at which this worker serves its metrics; "": it serves none.
        """
        self._session = session
        self._roster = roster
        self._stalls = stalls
        self._metrics = metrics
        self._finish = threading.Event()
        self._thread = threading.Thread(target=self._run, name="farandole-progress", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop reporting, after the report that is being sent."""
        self._finish.set()

    def join(self, seconds: float) -> None:
        """Wait until the thread has ended."""
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            self._report()  # At once: it says where the metrics are.
            while not self._finish.wait(self._session.settings.progress):
                self._report()
        except RendezvousError:
            pass  # The launcher has gone, or this session has: the progress is of no use any more.

    def _report(self) -> None:
        session, stalls = self._session, self._stalls
        self._roster.report_progress(
            session.steps, session.engine.blocked_seconds, self._metrics, stalls.count, stalls.where
        )

"""The metrics of one worker: the counts of its engine in all its worlds, read when they are scraped."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Any

from farandole.base.metrics.address import parse_metrics_address
from farandole.base.metrics.endpoint import MetricsEndpoint, MetricsUnavailable
from farandole.base.metrics.readings import (
    Reading,
    Sample,
    StepTimer,
    WaitingShare,
    WorkerTotals,
    operation_samples,
)
from farandole.worker.core.session import Session
from farandole.worker.core.user_log import tell_user
from farandole.worker.observe.stalls import StallRecord

if TYPE_CHECKING:
    from farandole.base.wire.rendezvous import World


class WorkerMetrics:
    """The metrics of a worker in all its worlds.

    Threads: the one that enters and leaves worlds, and those of the endpoint, which read. A lock keeps the engine alive
    while it is read.

    Args:
        job: the job's name or number; "" if it has none.
        worker: the worker's number.
        stalls: this worker's record of stalls.
    """

    def __init__(self, job: str, worker: int, stalls: StallRecord) -> None:
        self._who = (job, str(worker), socket.gethostname())
        self._stalls = stalls
        self._totals = WorkerTotals()
        self._timer = StepTimer()
        self._share = WaitingShare()
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._session: Session | None = None
        self._world: World | None = None
        self._latest: Session | None = None
        """The session whose counts are read, even if it is not in a world."""
        self._steps_before = 0
        self._steps_at_entry = 0
        self._blocked_at_entry = 0.0
        self._endpoint: MetricsEndpoint | None = None

    @property
    def address(self) -> str:
        """The address at which the metrics are served; "" if they are not."""
        return "" if self._endpoint is None else str(self._endpoint.address)

    def serve(self, endpoint: MetricsEndpoint) -> None:
        """Own the endpoint that reads these metrics."""
        self._endpoint = endpoint

    def enter(self, session: Session) -> None:
        """Add the counts of a new world from now on."""
        with self._lock:
            self._session, self._world = session, session.world
            # A session counts these two over all its worlds; its engine restarts all other counts.
            again = session is self._latest
            self._steps_at_entry = session.steps if again else 0
            self._blocked_at_entry = session.engine.blocked_seconds if again else 0.0
            self._latest = session
        session.on_step = self._timer.step

    def leave(self) -> None:
        """Keep the counts of a world that is about to end."""
        with self._lock:
            if self._session is None:
                return
            self._session.on_step = None
            self._totals.world_ends(self._stats(self._session))
            self._steps_before += self._session.steps - self._steps_at_entry
            self._session = None
        self._timer.world_ends()

    def _stats(self, session: Session) -> dict[str, Any]:
        stats = session.engine.stats()
        return {**stats, "blocked_seconds": stats["blocked_seconds"] - self._blocked_at_entry}

    def close(self) -> None:
        """Stop serving."""
        if self._endpoint is not None:
            self._endpoint.close()

    def read(self) -> Reading:
        """Return all metrics of this worker, now."""
        with self._lock:
            session, world = self._session, self._world
            totals = self._totals.with_world({} if session is None else self._stats(session))
            steps = self._steps_before + (0 if session is None else session.steps - self._steps_at_entry)
        samples: list[Sample] = [Sample("farandole_worker", 1.0, self._who)]
        if world is not None:
            samples += [
                Sample("farandole_rank", world.rank),
                Sample("farandole_world_size", world.size),
                Sample("farandole_generation", world.generation),
            ]
        blocked = float(totals.get("blocked_seconds", 0.0))
        samples += operation_samples(totals.get("operations", {}))
        samples += [
            Sample("farandole_agreement_rounds", float(totals.get("rounds", 0))),
            Sample("farandole_blocked_seconds", blocked),
            Sample("farandole_waiting_ratio", self._share.of(blocked)),
            Sample("farandole_steps", steps),
            Sample("farandole_stalls", self._stalls.count),
        ]
        return [*samples, ("farandole_step_seconds", self._timer.histogram())]


def serve_worker_metrics(session: Session, stalls: StallRecord) -> WorkerMetrics | None:
    """Serve the metrics of this process. If that is impossible, warn and return None: the training continues without
    them.

    With a port other than 0, each worker of a host takes that port plus its local rank.
    """
    settings, world = session.settings, session.world
    assert settings.metrics is not None
    address = parse_metrics_address(settings.metrics)
    if address.port:
        address = address.with_port(address.port + world.local_rank)
    metrics = WorkerMetrics(settings.job or "", world.worker(world.rank), stalls)
    try:
        metrics.serve(MetricsEndpoint(address, metrics.read, settings.metrics_token))
    except MetricsUnavailable as error:
        tell_user(
            "warning",
            f"{error}. {error.hint[:1].upper()}{error.hint[1:]}. Training goes on without metrics.",
            world.rank,
        )
        return None
    return metrics

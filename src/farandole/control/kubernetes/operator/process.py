"""The operator: connects its parts.

Watches fill the store, and the store reports which jobs have changed (`work_queue`): decisions follow from the state of
a job, not from single changes. All operators of a deployment watch; only the leader reconciles.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from lightkube.config.kubeconfig import SingleConfig

from farandole.base.display.standard_output import discard_standard_output
from farandole.control.kubernetes import gang
from farandole.control.kubernetes.api.client import Api, default_config
from farandole.control.kubernetes.api.errors import ApiError, Conflict, NotFound
from farandole.control.kubernetes.kinds import KINDS, MPI_JOB, QUEUE, Kind
from farandole.control.kubernetes.model import Options
from farandole.control.kubernetes.operator import endpoint
from farandole.control.kubernetes.operator.carry_out import Executor, NotLeading
from farandole.control.kubernetes.operator.election import DURATION, Election
from farandole.control.kubernetes.operator.metrics import CONTENT_TYPE, Metrics
from farandole.control.kubernetes.operator.queue_keeper import QueueKeeper
from farandole.control.kubernetes.operator.store import ClusterStore, JobKey
from farandole.control.kubernetes.operator.watch import SELECTOR, UNMARKED, ChildWatch, JobWatch, Watch
from farandole.control.kubernetes.operator.work_queue import WorkQueue

log = logging.getLogger("farandole.operator")

# Number of jobs that are reconciled at the same time. They mostly wait for answers.
WORKERS = 8
_RBAC = "rbac.authorization.k8s.io/v1"
# Objects of jobs that do not change, but may be deleted: then they are created again.
_ONLY_THERE = (
    ("v1", "Service", SELECTOR),
    ("v1", "ServiceAccount", SELECTOR),
    (_RBAC, "Role", SELECTOR),
    (_RBAC, "RoleBinding", SELECTOR),
    ("networking.k8s.io/v1", "NetworkPolicy", SELECTOR),
    ("v1", "ConfigMap", UNMARKED),
)
# Seconds between two counts of the cluster's nodes, while a queue needs them.
NODES, NODES_SOON = 30.0, 1.0


@dataclass(frozen=True)
class OperatorSettings:
    """The options of an operator.

    Attributes:
        namespace: the only namespace that it serves; "" for all.
        lease_namespace: the namespace of the Lease with which several operators elect their leader.
        lease_seconds: seconds of silence of the leader after which another operator takes over.
        port: port of /metrics, /healthz and /readyz; 0 for any free one, None for none.
    """

    options: Options = field(default_factory=Options)
    kinds: tuple[Kind, ...] = KINDS
    namespace: str = ""
    lease_namespace: str = "default"
    lease_seconds: float = DURATION
    identity: str = ""
    host: str = "0.0.0.0"
    port: int | None = 8080


class Operator:
    """One operator, which serves until `stop` is set.

    Its fields are its parts, each of which has its own module.
    """

    def __init__(self, settings: OperatorSettings, config: SingleConfig | None = None) -> None:
        self.settings = settings
        self.stop = asyncio.Event()
        self.metrics = Metrics()
        self.port = 0
        self.api = Api(config or default_config())
        self._queue = WorkQueue(time.monotonic)
        self.store = ClusterStore(self._queue.add)
        self._queues = QueueKeeper(self.store, self._queue.add)
        self._parked: set[JobKey] = set()
        identity = settings.identity or f"{socket.gethostname()}_{os.getpid()}_{secrets.token_hex(4)}"
        self.election = Election(self.api, settings.lease_namespace, identity, self._renewed, settings.lease_seconds)
        self._executor = Executor(self.api, self.store, lambda: self.election.leading, time.time, identity)
        self._reconcilers = {kind.plural: kind.reconcile() for kind in settings.kinds}
        self.watches = _watches(settings, self.api, self.store)

    async def run(self) -> None:
        """Serve until stopped; if a part fails, raise its error."""
        server = await self._serve()
        parts = [asyncio.create_task(part) for part in (*(watch.run() for watch in self.watches), self._work())]
        stopped = asyncio.create_task(self.stop.wait())
        try:
            done, _ = await asyncio.wait([*parts, stopped], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopped}:
                task.result()
        finally:
            self.stop.set()
            await self.election.release()
            await _end([*parts, stopped])
            if server is not None:
                server.close()
            await self.api.close()

    # --- reconciling ---

    async def _work(self) -> None:
        """Reconcile due jobs, once everything has been listed."""
        for watch in self.watches:
            # Without a timeout: an operator without the API server has nothing else to do.
            await watch.synced.wait()
        tasks = [asyncio.create_task(self._worker()) for _ in range(WORKERS)]
        tasks += [asyncio.create_task(self.election.run()), asyncio.create_task(self._count_nodes())]
        try:
            await asyncio.gather(*tasks)
        finally:
            await _end(tasks)

    async def _worker(self) -> None:
        while True:
            key, due = await self._queue.get()
            try:
                if self.election.leading:
                    await self._reconcile(key, due)
                else:
                    self._parked.add(key)
            finally:
                self._queue.done(key)

    async def _reconcile(self, key: JobKey, due: float) -> None:
        """Reconcile one job; an error concerns only that job, which is reconciled again later."""
        started = time.monotonic()
        observed = self.store.observed(key, time.time(), self.settings.options)
        if observed is None:
            self._queues.gone(key)
            self._queue.succeeded(key)
            return
        result = "done"
        try:
            observed = self._queues.decided(key, observed)
            outcome = self._reconcilers[key.plural](observed)
            writes = await self._executor.carry_out(key, observed, outcome)
        except NotLeading:
            result = "not leading"
            self._parked.add(key)
        except (NotFound, Conflict) as error:
            # Something had changed that was not known yet. Now it is, or the watch is about to report it.
            result = "conflict"
            log.debug("%s: %s; again in %.1f s", key, error, self._queue.add_failed(key))
        except ApiError as error:
            result = "unavailable"
            delay = self._queue.add_failed(key, error.retry_after or 0.0)
            log.warning("%s: %s; again in %.1f s", key, error, delay)
        except Exception:
            result = "error"
            delay = self._queue.add_failed(key)
            log.exception("%s: internal error of the operator; again in %.1f s", key, delay)
        else:
            self._queue.succeeded(key)
            self.metrics.writes += writes
            if key.kind is MPI_JOB and outcome.status is not None:
                self.metrics.count_mpi_job(observed.job.get("status"), outcome.status)
            if writes:
                log.info("%s: %s (%d requests)", key, outcome.reason, writes)
            if outcome.again_at is not None:
                self._queue.add(key, max(0.0, outcome.again_at - time.time()))
            if (pause := self._executor.recheck_after(observed)) is not None:
                self._queue.add(key, pause)
        self.metrics.reconciles[result] += 1
        self.metrics.work.add(time.monotonic() - started)
        self.metrics.latency.add(time.monotonic() - due)

    def _renewed(self, news: bool) -> None:
        """Continue with jobs that became due while this operator did not lead; all jobs if another may have led."""
        keys = {key for key, _ in self.store.jobs()} if news else self._parked
        self._parked = set()
        for key in keys:
            self._queue.add(key)

    async def _count_nodes(self) -> None:
        while True:
            wait = NODES_SOON
            if self.election.leading and self._queues.counts_nodes:
                wait = NODES
                try:
                    nodes, _ = await self.api.list("v1", "nodes")
                    self._queues.set_nodes(nodes)
                except ApiError as error:
                    log.warning("nodes cannot be counted: %s; again in %g s", error, wait)
            await asyncio.sleep(wait)

    # --- pages ---

    async def _serve(self) -> asyncio.Server | None:
        if self.settings.port is None:
            return None
        pages = {"/metrics": self._metrics, "/healthz": self._health, "/readyz": self._readiness}
        server = await endpoint.serve(self.settings.host, self.settings.port, pages)
        self.port = server.sockets[0].getsockname()[1]
        return server

    def _metrics(self) -> tuple[HTTPStatus, str, str]:
        jobs = [(key.kind.kind, job) for key, job in self.store.jobs() if key.kind is not QUEUE]
        relists = sum(watch.relists for watch in self.watches)
        text = self.metrics.text(jobs, self.api.requests, len(self._queue), self.election.leading, relists)
        return HTTPStatus.OK, CONTENT_TYPE, text

    def _health(self) -> tuple[HTTPStatus, str, str]:
        return _probed([watch.why_not_alive() for watch in self.watches])

    def _readiness(self) -> tuple[HTTPStatus, str, str]:
        return _probed([watch.why_not_ready() for watch in self.watches])


def _probed(reasons: list[str]) -> tuple[HTTPStatus, str, str]:
    """Return the answer to a probe, which fails if there are reasons."""
    failing = [reason for reason in reasons if reason]
    text = "".join(f"{line}\n" for line in failing or ["ok"])
    return HTTPStatus.SERVICE_UNAVAILABLE if failing else HTTPStatus.OK, endpoint.PLAIN, text


def _watches(settings: OperatorSettings, api: Api, store: ClusterStore) -> list[Watch]:
    """Return a watch of each kind of jobs, and of each kind of object that jobs own."""
    namespace = settings.namespace
    watches: list[Watch] = [JobWatch.of(api, store, kind, namespace) for kind in settings.kinds]
    # Objects that change by themselves, or on which decisions depend.
    watches += [ChildWatch(api, store, "v1", kind, namespace, SELECTOR) for kind in ("Pod", "ConfigMap")]
    if settings.options.gang_scheduler:
        version = gang.VOLCANO_API if settings.options.gang_scheduler == gang.VOLCANO else gang.COSCHEDULING_API
        watches.append(ChildWatch(api, store, version, "PodGroup", namespace, SELECTOR, may_lack=True))
    watches += [
        ChildWatch(api, store, version, kind, namespace, selector, only_metadata=True)
        for version, kind, selector in _ONLY_THERE
    ]
    return watches


async def _end(tasks: list[asyncio.Task[Any]]) -> None:
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        # Once is not always enough: before Python 3.12, wait_for loses a cancellation that comes with its result.
        _, left = await asyncio.wait(left, timeout=1.0)
    await asyncio.gather(*tasks, return_exceptions=True)


def main(settings: OperatorSettings, verbose: bool) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit code."""
    form = "%(asctime)s %(levelname)s %(message)s"
    logging.basicConfig(level=logging.WARNING, format=form, stream=sys.stderr)
    logging.getLogger("farandole.operator").setLevel(logging.DEBUG if verbose else logging.INFO)

    discard_standard_output()

    async def serve() -> None:
        operator = Operator(settings)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, operator.stop.set)
        await operator.run()

    asyncio.run(serve())
    return 0

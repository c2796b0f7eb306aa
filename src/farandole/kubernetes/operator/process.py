"""The operator: its parts, wired; kopf's handlers only say which job is to be looked at.

kopf is the frame: it waits for the kinds to be installed, watches the jobs, logs in again, and ends in good order. What
it feeds is level-triggered (`work_queue`), so that no handler decides anything. All operators of a deployment watch;
the one that leads reconciles.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kopf
from aiohttp import web
from lightkube.config.kubeconfig import SingleConfig

from farandole.kubernetes import gang
from farandole.kubernetes.kinds import KINDS, QUEUE, Kind
from farandole.kubernetes.model import Options
from farandole.kubernetes.operator import backoff
from farandole.kubernetes.operator.api import Api, default_config
from farandole.kubernetes.operator.carry_out import Executor, NotLeading
from farandole.kubernetes.operator.election import DURATION, Election
from farandole.kubernetes.operator.errors import ApiError, Conflict, NotFound
from farandole.kubernetes.operator.metrics import CONTENT_TYPE, Metrics
from farandole.kubernetes.operator.queue_keeper import QueueKeeper
from farandole.kubernetes.operator.store import JobKey, Store
from farandole.kubernetes.operator.watch import SELECTOR, UNMARKED, ChildWatch
from farandole.kubernetes.operator.work_queue import WorkQueue

log = logging.getLogger("farandole.operator")

# Jobs that are reconciled at the same time. They mostly wait for answers.
WORKERS = 8
_RBAC = "rbac.authorization.k8s.io/v1"
# What jobs own and nobody changes, but somebody may delete: it is made again.
_ONLY_THERE = (
    ("v1", "Service", SELECTOR),
    ("v1", "ServiceAccount", SELECTOR),
    (_RBAC, "Role", SELECTOR),
    (_RBAC, "RoleBinding", SELECTOR),
    ("networking.k8s.io/v1", "NetworkPolicy", SELECTOR),
    ("v1", "ConfigMap", UNMARKED),
)
# Seconds after which all jobs are listed: for those whose end no watch has told.
RESYNC = 600.0
# Between two looks at the cluster's nodes, while a queue counts their slots.
NODES, NODES_SOON = 30.0, 1.0
# Seconds before jobs are watched again where that came to an end, twice as many each time.
_FIRST_REST, _LONGEST_REST = 1.0, 30.0


@dataclass(frozen=True)
class Settings:
    """What an operator is started with.

    Attributes:
        namespace: the one that it serves, "" for all.
        lease_namespace: where the Lease is by which several operators elect their leader.
        lease_seconds: for how long another one waits when that one is silent.
        port: of /metrics, /healthz and /readyz; 0 takes any, None has none.
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

    Its fields are the parts that it wires, each of which has a room of its own.
    """

    def __init__(self, settings: Settings, config: SingleConfig | None = None) -> None:
        self.settings = settings
        self.stop = asyncio.Event()
        self.ready = asyncio.Event()
        self.metrics = Metrics()
        self.port = 0
        self._config = config or default_config()
        self.api = Api(self._config)
        self._queue = WorkQueue(time.monotonic)
        self.store = Store(self._queue.add)
        self._end_kopf: Callable[[], object] = lambda: None
        self._queues = QueueKeeper(self.store, self._queue.add)
        self._parked: set[JobKey] = set()
        identity = settings.identity or f"{socket.gethostname()}_{os.getpid()}_{secrets.token_hex(4)}"
        self.election = Election(self.api, settings.lease_namespace, identity, self._renewed, settings.lease_seconds)
        self._executor = Executor(self.api, self.store, lambda: self.election.leading, time.time, identity)
        self._reconcilers = {kind.plural: kind.reconcile() for kind in settings.kinds}
        self._watches = [
            ChildWatch(self.api, self.store, version, kind, settings.namespace)
            for version, kind in _watched(settings.options)
        ]
        self._watches += [
            ChildWatch(self.api, self.store, version, kind, settings.namespace, selector, only_existence=True)
            for version, kind, selector in _ONLY_THERE
        ]

    async def run(self) -> None:
        """Serve until stopped; raises what a part of it raised."""
        server = await self._serve()
        watches = [asyncio.create_task(watch.run()) for watch in self._watches]
        parts = [*watches, asyncio.create_task(self._kopf()), asyncio.create_task(self._work())]
        stopped = asyncio.create_task(self.stop.wait())
        try:
            done, _ = await asyncio.wait([*parts, stopped], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopped}:
                task.result()
        finally:
            self.stop.set()
            await self.election.release()
            await _end([*watches, parts[-1], stopped])
            # kopf ends by itself, and in its own order.
            await _end([parts[-2]], wait=10.0)
            if server is not None:
                await server.cleanup()
            await self.api.close()

    # --- reconciling ---

    async def _work(self) -> None:
        """Reconcile what is due, as soon as everything has been seen once."""
        for watch in self._watches:
            # As long as it takes: an operator without the API server has nothing else to do.
            await watch.synced.wait()
        self.ready.set()
        tasks = [asyncio.create_task(self._worker()) for _ in range(WORKERS)]
        tasks += [asyncio.create_task(self.election.run()), asyncio.create_task(self._resync())]
        tasks.append(asyncio.create_task(self._count_nodes()))
        try:
            await asyncio.gather(*tasks)
        finally:
            await _end(tasks)

    async def _worker(self) -> None:
        while True:
            key, due = await self._queue.take()
            try:
                if self.election.leading:
                    await self._reconcile(key, due)
                else:
                    self._parked.add(key)
            finally:
                self._queue.done(key)

    async def _reconcile(self, key: JobKey, due: float) -> None:
        """Look at one job; whatever goes wrong is that job's, and is tried again later."""
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
            # Something had changed that was not known yet. Now it is, or the watch is about to tell.
            result = "conflict"
            log.debug("%s: %s; again in %.1f s", key, error, self._queue.add_failed(key))
        except ApiError as error:
            result = "unavailable"
            delay = self._queue.add_failed(key, error.retry_after or 0.0)
            log.warning("%s: %s; again in %.1f s", key, error, delay)
        except Exception:
            result = "error"
            delay = self._queue.add_failed(key)
            log.exception("%s: this is an error of the operator's; again in %.1f s", key, delay)
        else:
            self._queue.succeeded(key)
            self.metrics.writes += writes
            if writes:
                log.info("%s: %s (%d requests)", key, outcome.reason, writes)
            if outcome.again_at is not None:
                self._queue.add(key, max(0.0, outcome.again_at - time.time()))
            if (pause := self._executor.looks_again(observed)) is not None:
                self._queue.add(key, pause)
        self.metrics.reconciles[result] += 1
        self.metrics.work.add(time.monotonic() - started)
        self.metrics.latency.add(time.monotonic() - due)

    def _renewed(self, news: bool) -> None:
        """Go on with what was due while this operator did not lead; with all jobs, if another one may have led."""
        keys = {key for key, _ in self.store.jobs()} if news else self._parked
        self._parked = set()
        for key in keys:
            self._queue.add(key)

    async def _resync(self) -> None:
        while True:
            await asyncio.sleep(RESYNC)
            await self._compare_all()

    async def _compare_all(self) -> None:
        for kind in self.settings.kinds:
            with contextlib.suppress(ApiError):
                jobs, version = await self.api.list(kind.api_version, kind.plural, self.settings.namespace)
                self._compare(kind, jobs, version)

    async def _count_nodes(self) -> None:
        while True:
            wait = NODES_SOON
            if self.election.leading and self._queues.counts_nodes:
                wait = NODES
                try:
                    nodes, _ = await self.api.list("v1", "nodes")
                    self._queues.take_nodes(nodes)
                except ApiError as error:
                    log.warning("nodes cannot be counted: %s; again in %g s", error, wait)
            await asyncio.sleep(wait)

    def _compare(self, kind: Kind, jobs: list[dict[str, Any]], version: str) -> None:
        for job in jobs:
            self._put(kind, job)
        self.store.keep_only_jobs(kind.plural, jobs, version)

    # --- kopf ---

    async def _kopf(self) -> None:
        """Have kopf watch the jobs until stopped, and again when it gives up.

        It does so when an API server that is just starting says that it knows no such kind. It has a thread and a loop
        of its own, because at its end it ends all that was begun in its loop after it.
        """
        loop, failures = asyncio.get_running_loop(), 0
        stopping = asyncio.create_task(self._stop_kopf())
        try:
            while not self.stop.is_set():
                began, why = time.monotonic(), "it has ended"
                try:
                    await asyncio.to_thread(lambda: asyncio.run(self._watch_jobs(loop)))
                except Exception as error:
                    why = str(error) or type(error).__name__
                if self.stop.is_set():
                    return
                failures = 1 if time.monotonic() - began > _LONGEST_REST else failures + 1
                rest = backoff.rest(failures - 1, _FIRST_REST, _LONGEST_REST)
                log.warning("the watch of jobs: %s; again in %g s", why, rest)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self.stop.wait(), rest)
                await self._compare_all()
        finally:
            self._end_kopf()
            stopping.cancel()

    async def _stop_kopf(self) -> None:
        await self.stop.wait()
        self._end_kopf()

    async def _watch_jobs(self, loop: asyncio.AbstractEventLoop) -> None:
        # Of this loop: kopf waits for a flag of threads in a thread, and then cannot end before it is set.
        stop, own = asyncio.Event(), asyncio.get_running_loop()

        def end() -> None:
            with contextlib.suppress(RuntimeError):  # The loop has ended.
                own.call_soon_threadsafe(stop.set)

        self._end_kopf = end
        if self.stop.is_set():
            return
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry, id="login")(self._login)
        kopf.on.startup(registry=registry, id="settings")(_configure)
        for kind in self.settings.kinds:
            feed = self._feed(kind, loop)
            kopf.on.event(kind.group, kind.version, kind.plural, registry=registry, id=kind.plural)(feed)
        namespace = self.settings.namespace
        await kopf.operator(
            registry=registry,
            clusterwide=not namespace,
            namespaces=[namespace] if namespace else [],
            standalone=True,
            stop_flag=stop,
        )

    def _feed(self, kind: Kind, loop: asyncio.AbstractEventLoop) -> Any:
        async def feed(event: Any, **_: Any) -> None:
            loop.call_soon_threadsafe(self._take, kind, event["type"], dict(event["object"]))

        return feed

    def _take(self, kind: Kind, change: str | None, job: dict[str, Any]) -> None:
        if change == "DELETED":
            self.store.remove_job(_key(kind, job), job["metadata"]["uid"])
        else:
            self._put(kind, job)

    def _put(self, kind: Kind, job: dict[str, Any]) -> None:
        self.store.put_job(_key(kind, job), {**job, "apiVersion": kind.api_version, "kind": kind.kind})

    async def _login(self, **_: Any) -> kopf.ConnectionInfo:
        """Tell kopf what lightkube knows; it asks again when a token is no longer accepted."""
        cluster, user = self._config.cluster, self._config.user
        token = user.token
        if user.token_file is not None:
            token = Path(user.token_file).read_text().strip()
        return kopf.ConnectionInfo(
            server=cluster.server,
            ca_path=cluster.certificate_auth,
            ca_data=cluster.certificate_auth_data,
            insecure=cluster.insecure,
            token=token,
            certificate_path=user.client_cert,
            certificate_data=user.client_cert_data,
            private_key_path=user.client_key,
            private_key_data=user.client_key_data,
        )

    # --- being asked ---

    async def _serve(self) -> web.AppRunner | None:
        if self.settings.port is None:
            return None
        app = web.Application()
        app.add_routes(
            [web.get("/metrics", self._metrics), web.get("/healthz", _healthy), web.get("/readyz", self._readyz)]
        )
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, self.settings.host, self.settings.port)
        await site.start()
        self.port = runner.addresses[0][1]
        return runner

    async def _metrics(self, _: web.Request) -> web.Response:
        jobs = [(key.kind.kind, job) for key, job in self.store.jobs() if key.kind is not QUEUE]
        relists = sum(watch.relists for watch in self._watches)
        text = self.metrics.text(jobs, self.api.requests, len(self._queue), self.election.leading, relists)
        return web.Response(text=text, headers={"Content-Type": CONTENT_TYPE})

    async def _readyz(self, _: web.Request) -> web.Response:
        ready = self.ready.is_set()
        return web.Response(text="ok\n" if ready else "not everything is listed yet\n", status=200 if ready else 503)


async def _healthy(_: web.Request) -> web.Response:
    return web.Response(text="ok\n")


async def _configure(settings: kopf.OperatorSettings, **_: Any) -> None:
    """Have kopf leave no mark on any object, and outlast outages."""
    settings.posting.enabled = False
    settings.watching.server_timeout = 240
    settings.watching.connect_timeout = 30
    settings.networking.error_backoffs = [0.5, 1, 2, 4, 8, 15, 30, 30, 30, 30, 30, 30, 60, 60, 60]
    settings.process.ultimate_exiting_timeout = None


def _key(kind: Kind, job: dict[str, Any]) -> JobKey:
    return JobKey(kind.plural, job["metadata"]["namespace"], job["metadata"]["name"])


def _watched(options: Options) -> list[tuple[str, str]]:
    """Return what is watched of what jobs own: what changes by itself, or decides what follows."""
    kinds = [("v1", "Pod"), ("v1", "ConfigMap")]
    if options.gang_scheduler:
        version = gang.VOLCANO_API if options.gang_scheduler == gang.VOLCANO else gang.COSCHEDULING_API
        kinds.append((version, "PodGroup"))
    return kinds


async def _end(tasks: list[asyncio.Task[Any]], wait: float = 0.0) -> None:
    if wait:
        await asyncio.wait(tasks, timeout=wait)
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        # Once is not always enough: before Python 3.12, wait_for loses a cancellation that comes with its result.
        _, left = await asyncio.wait(left, timeout=1.0)
    await asyncio.gather(*tasks, return_exceptions=True)


def main(settings: Settings, verbose: bool) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit code."""
    form = "%(asctime)s %(levelname)s %(message)s"
    logging.basicConfig(level=logging.WARNING, format=form, stream=sys.stderr)
    logging.getLogger("farandole.operator").setLevel(logging.DEBUG if verbose else logging.INFO)
    logging.getLogger("kopf").setLevel(logging.INFO if verbose else logging.WARNING)
    # It says that signals do not reach its thread; they are handled here.
    logging.getLogger("kopf._core.reactor.running").addFilter(lambda record: "signals" not in record.getMessage())

    async def serve() -> None:
        operator = Operator(settings)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, operator.stop.set)
        await operator.run()

    asyncio.run(serve())
    return 0

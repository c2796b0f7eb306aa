"""`python -m farandole.control.kubernetes.launcher_pod`: the launcher of a TrainingJob, in its pod.

- It takes the job over from the previous launcher pod, if that has left any state; otherwise it begins the job.
- SIGTERM means the end of this pod, not of the job: it ends at once, and the workers keep training until a new launcher
    takes over.
- The outcome is written to the state object before this process ends, with code 0 for all outcomes. So if a kubelet
    restarts it, it finds that the job is done, and does not train again.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from farandole.base.wire.secret_file import SecretFile
from farandole.control.jobs.spec import from_dict
from farandole.control.kubernetes.launcher_pod.report import StateReporter
from farandole.control.kubernetes.launcher_pod.state_objects import (
    LONGEST_WAIT_SECONDS,
    NotWritten,
    SealedFailover,
    StateObjects,
)
from farandole.control.kubernetes.launcher_pod.state_writer import StateWriter
from farandole.control.kubernetes.training_job import told
from farandole.control.kubernetes.training_job.own_names import OUTCOME_KEY
from farandole.control.launcher.background import Background
from farandole.control.launcher.job.dialed_hosts import DialedHosts
from farandole.control.launcher.job.from_job import FOR_ALL, elastic_launch
from farandole.control.launcher.job.machine import Machine
from farandole.control.launcher.job.spec import LaunchSpec
from farandole.control.launcher.output.console import Console, OutputOptions, descriptor_writer
from farandole.control.launcher.start.launch import launch
from farandole.control.launcher.supervise.elastic_job import ElasticJob
from farandole.control.launcher.supervise.failover_files import NothingLeft
from farandole.control.launcher.supervise.outcome import JobOutcome, Running
from farandole.errors import LaunchError

REPLACED, ASKED_TO_GO = 75, 143
# A pod's processor may be busy with other pods: heartbeats come later than on dedicated machines.
HOST_SECONDS = 5.0
# The shares of the pod's grace period for the API server, and for the agents, in seconds.
_SAVING_SECONDS, _TELLING_SECONDS = 20.0, 0.5
_REST_SECONDS = 1.0
_PODS = DialedHosts(
    lost="kubectl describe pod {host} shows how it ended, and kubectl get events whether its node was lost",
    install="install it in the image of the pods",
)
T = TypeVar("T")


def spec_of(described: dict[str, Any]) -> LaunchSpec:
    """Return the launch of a job (see `training_job.pods.description`)."""
    job = from_dict(described["job"])
    return elastic_launch(
        job,
        job.workers.min,
        f"dial:{described['port']}:{described['secret']}",
        replace(FOR_ALL, output=OutputOptions(status=False), host_timeout=HOST_SECONDS, dialed=_PODS),
        timeout=described["absence"],
        reset_limit=None if job.is_elastic else 0,
        fills_at_once=True,
    )


def machine_of(described: dict[str, Any]) -> Machine:
    """Return the machine for the plan. It has no variables of this pod: workers have the environment of their image."""
    return Machine(socket.gethostname(), 1, 0, described["directory"], {})


async def run(described: dict[str, Any], objects: StateObjects, failover: SealedFailover) -> JobOutcome:
    """Run the job to its end, or continue it."""
    try:
        return await _launch(described, objects, failover)
    except NothingLeft as error:
        print(f"note: {error.message}; it starts again", flush=True)
    await asyncio.to_thread(failover.clear)
    return await _launch(described, objects, failover)


async def _launch(described: dict[str, Any], objects: StateObjects, failover: SealedFailover) -> JobOutcome:
    spec = spec_of(described)
    background = Background()
    writer = StateWriter(failover)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, _Leaving(writer).asked)

    def started(job: Running) -> None:
        assert isinstance(job, ElasticJob)
        # Its own connection, since it reports from another thread.
        report = StateReporter(objects.again(), described["attempt"])
        background.spawn(report.run(job))

    try:
        console = Console(descriptor_writer(1), descriptor_writer(2), options=spec.output)
        return await launch(spec, machine_of(described), console, started=started, failover_files=writer)
    finally:
        await background.end()
        await writer.close()


class _Leaving:
    """Ends the launcher when its pod ends, without a message to the agents, which must wait for the next launcher.

    If the API server was unreachable for too long, the agents have orders to end with this launcher. Then the launcher
    continues for a while, so that these orders can be changed.
    """

    def __init__(self, writer: StateWriter) -> None:
        self._writer = writer
        self._task: asyncio.Task[None] | None = None

    def asked(self) -> None:
        """End at once if a successor could take over, otherwise soon."""
        if not self._writer.gate.lapsed:
            os._exit(ASKED_TO_GO)
        elif self._task is None:
            print("farandole: the launcher waits for the API server before it ends", flush=True)
            self._task = asyncio.get_running_loop().create_task(self._end())

    async def _end(self) -> None:
        if await self._writer.can_be_followed(_SAVING_SECONDS):
            await asyncio.sleep(_TELLING_SECONDS)
        os._exit(ASKED_TO_GO)


def report_outcome(objects: StateObjects, attempt: int, code: int, report: str) -> None:
    """Report the outcome of the job to the operator.

    Raises:
        NotWritten: as in `insist`.
    """
    text = json.dumps({"attempt": attempt, "exitCode": code, "report": report[-2000:]})
    insist(lambda: objects.write_state(**{OUTCOME_KEY: text}), "the outcome waits")


def is_done(objects: StateObjects, attempt: int) -> bool:
    """Return whether this attempt has an outcome already.

    Raises:
        NotWritten: as in `insist`.
    """
    outcome = told.parsed(insist(objects.read_state, "the launcher waits").get(OUTCOME_KEY))
    return bool(outcome.get("attempt") == attempt)


def insist(
    ask: Callable[[], T],
    what: str,
    rest: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> T:
    """Repeat a request to the API server until it answers.

    Raises:
        NotWritten: it has not answered within `LONGEST_WAIT_SECONDS` seconds.
    """
    deadline = clock() + LONGEST_WAIT_SECONDS
    while True:
        try:
            return ask()
        except NotWritten as error:
            if clock() > deadline:
                raise
            print(f"farandole: {what} for the API server: {error}", flush=True)
            rest(_REST_SECONDS)


def main() -> None:
    """Run the job that the environment describes."""
    try:
        serve()
    except NotWritten as error:
        sys.exit(
            f"error: the API server did not answer the launcher for {LONGEST_WAIT_SECONDS:g} s: {error}\n"
            "hint: the kubelet starts the launcher again, and workers wait for it for launcherAbsenceSeconds; "
            "look at the API server, and whether a NetworkPolicy keeps the launcher pod from it"
        )


def serve() -> None:
    """Run the job, or continue it.

    Raises:
        NotWritten: the API server was unreachable for too long.
    """
    _end_at_once_when_asked()
    described = json.loads(os.environ["FARANDOLE_TRAINING_JOB"])
    pod, attempt = os.environ.get("FARANDOLE_POD") or socket.gethostname(), described["attempt"]
    objects = StateObjects(described["namespace"], described["state"], described["failover"])
    if is_done(objects, attempt):
        return

    def replaced() -> None:
        print("farandole: another launcher pod has taken the job over; this one ends", flush=True)
        os._exit(REPLACED)

    secret = SecretFile(Path(described["secret"]))
    failover = SealedFailover(objects, secret.read, pod, attempt, replaced)
    failover.claim()
    try:
        outcome = asyncio.run(run(described, objects, failover))
        code, report = outcome.exit_code, outcome.report
    except LaunchError as error:
        code, report = 2, str(error)
    _end_at_once_when_asked()  # The loop has removed its handler at its end.
    if report:
        print(report, file=sys.stderr, flush=True)
    report_outcome(objects, attempt, code, report)
    failover.clear()


def _end_at_once_when_asked() -> None:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(ASKED_TO_GO))


if __name__ == "__main__":
    main()

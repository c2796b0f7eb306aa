"""The metrics of a job, and the addresses of its workers' metrics for Prometheus, served while the job runs."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from farandole.base.metrics.address import MetricsAddress, parse_metrics_address
from farandole.base.metrics.endpoint import MetricsEndpoint, MetricsUnavailable
from farandole.base.metrics.readings import Reading, Sample
from farandole.base.wire.encoding import encode_json
from farandole.control.jobs.view import JobView
from farandole.control.launcher.job.machine import Machine
from farandole.control.launcher.job.spec import LaunchSpec
from farandole.control.launcher.supervise.job_view import view_of
from farandole.control.launcher.supervise.supervisor import Supervisor
from farandole.errors import SpecError

ANSWER_SECONDS = 5.0
TOKEN_VARIABLE = "FARANDOLE_METRICS_TOKEN"

_Answer = TypeVar("_Answer")


@contextlib.contextmanager
def serve_job_metrics(
    spec: LaunchSpec, machine: Machine, job: Supervisor, name: str, say: Callable[[str], None]
) -> Iterator[None]:
    """Serve the job's metrics until the block ends, if the user has configured that.

    Args:
        spec: the launch of the job; its setting `metrics` gives the address.
        machine: this machine, whose environment has the token.
        job: the supervisor, called in the loop's thread, which must be the current one.
        name: name of the job.
        say: prints the address for the user.

    Raises:
        SpecError: the metrics cannot be served.
    """
    if (wanted := spec.settings.get("metrics")) is None:
        yield
        return
    ask = _asker(asyncio.get_running_loop())
    token = machine.environment.get(TOKEN_VARIABLE, "")
    served: list[MetricsEndpoint] = []

    def view() -> JobView:
        return msgspec.structs.replace(ask(lambda: view_of(job)), name=name)

    more = {
        "/targets": lambda query: encode_json(find_targets(view(), name, served[0].address)),
        "/view": lambda query: encode_json(view()),
    }
    try:
        endpoint = MetricsEndpoint(
            parse_metrics_address(wanted), lambda: read_job(view(), name, spec.command), token, more
        )
    except MetricsUnavailable as error:
        raise SpecError(str(error), error.hint) from None
    served.append(endpoint)
    say(f"farandole: metrics of the job: http://{endpoint.address}/metrics, of its workers: /targets there")
    try:
        yield
    finally:
        endpoint.close()


def _asker(loop: asyncio.AbstractEventLoop) -> Callable[[Callable[[], _Answer]], _Answer]:
    """Return a function with which other threads call a function in the loop's thread and get its result."""

    def ask(question: Callable[[], _Answer]) -> _Answer:
        async def answer() -> _Answer:
            return question()

        asking: Coroutine[Any, Any, _Answer] = answer()
        return asyncio.run_coroutine_threadsafe(asking, loop).result(ANSWER_SECONDS)

    return ask


def read_job(view: JobView, name: str, command: Sequence[str]) -> Reading:
    """Return the metrics of a job."""
    samples = [
        Sample("farandole_job", 1.0, (name, shlex.join(command))),
        Sample("farandole_job_workers", sum(worker.runs for worker in view.workers)),
        Sample("farandole_job_world_size", view.size),
        Sample("farandole_job_generation", view.generation),
        Sample("farandole_job_losses", view.losses),
        Sample("farandole_job_joins", view.joins),
        Sample("farandole_job_stalls", view.stalls),
    ]
    if view.per_second is not None:
        samples.append(Sample("farandole_job_steps_per_second", view.per_second))
    return samples + [
        Sample("farandole_job_worker_waiting_ratio", worker.waiting, (str(worker.worker),))
        for worker in view.workers
        if worker.waiting is not None
    ]


def find_targets(view: JobView, name: str, own: MetricsAddress) -> list[dict[str, Any]]:
    """Return the answer of Prometheus' HTTP service discovery: a group for the job itself, and one for each worker.

    A worker that listens on all addresses of its host is named by that host.
    """
    groups = [{"targets": [str(own)], "labels": {"farandole_job": name}}]
    for worker in view.workers:
        if worker.metrics:
            address = parse_metrics_address(worker.metrics)
            everywhere = address.host in ("0.0.0.0", "::")
            place = MetricsAddress(worker.host if everywhere else address.host, address.port)
            labels = {"farandole_job": name, "farandole_worker": str(worker.worker), "farandole_host": worker.host}
            groups.append({"targets": [str(place)], "labels": labels})
    return groups

"""A job as one step of a pipeline: submit it, wait for it, show its output, and return the metrics that it printed.

A worker reports metrics by printing a line such as

    metrics: {"accuracy": 0.98, "steps": 690}

Later lines override earlier ones. Values other than numbers are ignored.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from farandole.control.jobs.errors import JobError, Refused
from farandole.control.jobs.handle import JobFailed, JobHandle
from farandole.control.jobs.places import connect
from farandole.control.jobs.service import JobService
from farandole.control.jobs.spec import from_dict

_METRICS = re.compile(r"metrics: (\{.*\})\s*$")
# Seconds to wait for the last lines of a job that is over. They come at once, unless the machine is very busy.
_LAST_LINES = 120.0


def run_job(
    job: Mapping[str, Any],
    on: str | None = None,
    timeout: float | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, float]:
    """Run a job to its end, and return the metrics that its workers printed.

    If an earlier run of this step has submitted a job of the same name and that job is not over, this call waits for
    it instead: a step that is restarted trains nothing twice. When this step is interrupted (Ctrl-C, SystemExit, the
    timeout), the job is cancelled.

    Args:
        job: keys of a job, as in a file for `farandole submit`.
        on: the place; None: the default.
        timeout: seconds that the job may take, including the time in the queue; None: no limit.
        say: callback for each line of output.

    Raises:
        JobFailed: the job did not succeed.
        TimeoutError: the job is not over after `timeout` seconds.
        JobError: the job is not valid, or the place refuses it.
    """
    place, service = connect(on, os.environ)
    handle = JobHandle(_submitted(job, service, say), place, service)
    say(f"job {handle.name} on {place}")
    printed: dict[str, float] = {}
    showing = threading.Thread(target=_show, args=(handle, say, printed), daemon=True)
    showing.start()
    try:
        handle.result(timeout)
    except (KeyboardInterrupt, SystemExit, TimeoutError):
        # A place that does not answer must not hide the reason why this step ends.
        with contextlib.suppress(JobError):
            handle.cancel()
        raise
    except JobFailed:
        showing.join(_LAST_LINES)  # The last lines say why.
        raise
    showing.join(_LAST_LINES)
    if showing.is_alive():
        say(f"warning: the job's output has not ended within {_LAST_LINES:g} s; metrics may be missing")
    say(f"job {handle.name} has succeeded; metrics: {json.dumps(printed)}")
    return dict(printed)


def metrics_of(lines: Iterable[str]) -> dict[str, float]:
    """Return the metrics in lines that workers printed.

    Example:
        >>> metrics_of(['[0]<stdout>:metrics: {"loss": 0.5, "note": "good"}', "epoch 3", 'metrics: {"loss": 0.25}'])
        {'loss': 0.25}
    """
    found: dict[str, float] = {}
    for line in lines:
        if (written := _METRICS.search(line)) is None:
            continue
        try:
            values = json.loads(written[1])
        except ValueError:
            continue
        found |= {name: value for name, value in values.items() if _is_number(value)}
    return found


def _submitted(job: Mapping[str, Any], service: JobService, say: Callable[[str], None]) -> str:
    spec = from_dict(with_whole_numbers(job))
    try:
        return service.submit(spec)
    except Refused:
        if not spec.name or not _is_unfinished(service, spec.name):
            raise
    say(f"job {spec.name} exists already: waiting for it")
    return spec.name


def with_whole_numbers(value: Any) -> Any:
    """Return plain data with whole numbers as integers: between the steps of a pipeline, all numbers are floats."""
    if isinstance(value, Mapping):
        return {key: with_whole_numbers(each) for key, each in value.items()}
    if isinstance(value, list):
        return [with_whole_numbers(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _is_unfinished(service: JobService, name: str) -> bool:
    try:
        return not service.status(name).state.is_over
    except JobError:
        return False


def _show(handle: JobHandle, say: Callable[[str], None], printed: dict[str, float]) -> None:
    try:
        for line in handle.logs(follow=True):
            say(line.rstrip("\n"))
            printed |= metrics_of([line])
    except JobError as error:
        say(f"note: the job's output cannot be shown: {error}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

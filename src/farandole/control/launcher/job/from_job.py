"""Converts the description of a job to a launch of it. Pure.

A `JobSpec` (`farandole.control.jobs.spec`) describes a job, wherever it runs. A launch adds the current hosts of its
workers, and the options of all jobs at that place, such as how ssh reaches the hosts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from farandole.control.jobs.spec import JobSpec
from farandole.control.launcher.job import worker_settings
from farandole.control.launcher.job.elastic import Elastic
from farandole.control.launcher.job.host_list import Host
from farandole.control.launcher.job.spec import LaunchSpec

FOR_ALL = LaunchSpec(command=(), num_proc=None)
"""The default of the launch options that an administrator can choose for all jobs."""


def fixed_launch(job: JobSpec, hosts: Sequence[Host], for_all: LaunchSpec = FOR_ALL) -> LaunchSpec:
    """Return the launch of a job of fixed size.

    Args:
        job: the job's description.
        hosts: the hosts of its workers, with a slot for each worker.
        for_all: the launch options of all jobs; their command and hosts are ignored.

    Raises:
        SpecError: the job cannot be launched.
    """
    size = sum(host.slots or 0 for host in hosts)
    launch = replace(for_all, num_proc=size, hosts=tuple(hosts), elastic=None, end_grace=job.grace)
    return _of(job, launch)


def elastic_launch(
    job: JobSpec, num_proc: int, discovery: str, for_all: LaunchSpec = FOR_ALL, **changes: Any
) -> LaunchSpec:
    """Return the launch of an elastic job.

    Args:
        job: the job's description.
        num_proc: number of workers to begin with.
        discovery: the source of its hosts, as in `Elastic`.
        for_all: the launch options of all jobs; their command and hosts are ignored.
        changes: other fields of `Elastic`, which override those of `for_all`.

    Raises:
        SpecError: the job cannot be launched.
    """
    elastic = replace(
        for_all.elastic or Elastic(min_size=1, max_size=None),
        min_size=job.workers.min,
        max_size=job.workers.max,
        discovery=discovery,
        grace=job.grace,
        **changes,
    )
    return _of(job, replace(for_all, num_proc=num_proc, hosts=(), elastic=elastic))


def _of(job: JobSpec, launch: LaunchSpec) -> LaunchSpec:
    # Settings of the job override those of all jobs.
    settings = {**launch.settings, **worker_settings.with_start_timeout({}, job.environment)}
    if job.checkpoint:
        settings |= {"checkpoint_dir": job.checkpoint, "resume": "auto"}
    exports = (*launch.exports, *(f"{name}={value}" for name, value in job.environment.items()))
    output = replace(launch.output, once=launch.elastic is None, is_seen_with_report=True)
    return replace(launch, command=job.command, settings=settings, exports=exports, output=output)


def with_environment(launch: LaunchSpec, environment: Mapping[str, str]) -> LaunchSpec:
    """Return a launch with unset options taken from the launcher's environment.

    Raises:
        SpecError: the value of a variable is not valid.
    """
    return replace(launch, settings=worker_settings.with_environment(launch.settings, environment))


# --- as plain data, for files and databases -----------------------------------------------------------------------


def to_plain(launch: LaunchSpec) -> dict[str, Any]:
    """Return a launch as plain data."""
    plain: dict[str, Any] = msgspec.to_builtins(launch, enc_hook=_plain)
    return plain


def from_plain(plain: Mapping[str, Any]) -> LaunchSpec:
    """Return the launch that `to_plain` has converted; missing values have their defaults."""
    return msgspec.convert({"command": (), "num_proc": None, **plain}, LaunchSpec, dec_hook=_rich)


def _plain(value: Any) -> Any:
    return [value.start, value.stop] if isinstance(value, range) else str(value)


def _rich(kind: type, value: Any) -> Any:
    return range(*value) if kind is range else Path(value)

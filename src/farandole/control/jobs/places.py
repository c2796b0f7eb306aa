"""The places that run jobs: one row for each, with the module that its service is imported from on first use."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import NamedTuple, cast

from farandole.base.spelling import one_of
from farandole.control.jobs.errors import Refused, UnknownJob, Unreachable
from farandole.control.jobs.service import JobService

VARIABLE = "FARANDOLE_ON"
"""Environment variable with the place for commands that do not name one."""


class Place(NamedTuple):
    """A place where jobs run, and how its service is created. Functions are named as `module:function`."""

    sentence: str
    """Description for people."""
    connect: str
    """Function that takes the environment and returns a `JobService`."""
    extra: str = ""
    """The extra in `pip install 'farandole[...]'` that the place needs."""
    found: str = ""
    """Function that returns without blocking whether the place exists; "": the place is never a default."""
    away: str = ""
    """Function that returns without blocking the `Unreachable` of a place that exists and does not answer now, or None.
    Called only when the place is the default."""


PLACES: dict[str, Place] = {
    "queue": Place(
        "the queue of these machines: farandole queue start",
        "farandole.control.queue.client:connect",
        found="farandole.control.queue.address:exists",
        away="farandole.control.queue.client:unreachable",
    ),
    "kubernetes": Place(
        "the cluster that kubectl would use", "farandole.control.kubernetes.service:connect", extra="kubernetes"
    ),
    "slurm": Place("the Slurm cluster of this login node: sbatch", "farandole.control.slurm.service:connect"),
    "lsf": Place("the LSF cluster of this login node: bsub", "farandole.control.lsf.service:connect"),
    "ray": Place("the Ray cluster of RAY_API_SERVER_ADDRESS", "farandole.control.ray_jobs.service:connect"),
    "local": Place("this machine: elastic jobs of this user", "farandole.control.launcher.daemon.local_jobs:connect"),
}


def default_place(environment: Mapping[str, str]) -> str:
    """Return the default place: that of `FARANDOLE_ON`, or else the queue if there is one, or else `local`.

    Kubernetes, Slurm, LSF and Ray are never guessed: submitting there by mistake would occupy other people's machines.
    """
    if named := environment.get(VARIABLE):
        return named
    for name, place in PLACES.items():
        if place.found and _import(name, place.found)(environment):
            return name
    return "local"


def connect(name: str | None, environment: Mapping[str, str]) -> tuple[str, JobService]:
    """Return the name of a place and its service.

    Args:
        name: name of the place; None: the default.
        environment: environment variables of this process.

    Raises:
        Refused: there is no such place.
        Unreachable: a package that the place needs is not installed, or the place does not answer.
    """
    name = name or default_place(environment)
    if name not in PLACES:
        raise Refused(f"jobs cannot run on {name!r}", one_of(name, PLACES))
    return name, cast(JobService, _import(name, PLACES[name].connect)(environment))


def connect_to_jobs(
    name: str | None, environment: Mapping[str, str], job: str | None, warn: Callable[[Unreachable], None]
) -> tuple[str, JobService]:
    """Return the name of the place of existing jobs, and its service.

    A default place that does not answer must not hide the jobs of this machine: its error is passed to `warn`, and
    `local` is used instead. If `job` is not found there, the default place is contacted after all.

    Args:
        name: name of the place; None: the default.
        environment: environment variables of this process.
        job: name of the requested job; None: all jobs.
        warn: callback for the error.

    Raises:
        Refused: there is no such place.
        Unreachable: a package that the place needs is not installed.
    """
    place = name or default_place(environment)
    away = PLACES[place].away if name is None and place in PLACES and not environment.get(VARIABLE) else ""
    error = _import(place, away)(environment) if away else None
    if error is None:
        return connect(place, environment)
    here = connect("local", environment)
    if job is not None and not _knows(here[1], job):
        return connect(place, environment)
    warn(error)
    return here


def _knows(service: JobService, job: str) -> bool:
    try:
        service.status(job)
    except UnknownJob:
        return False
    return True


def _import(name: str, what: str):  # type: ignore[no-untyped-def]
    module, _, function = what.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        extra = PLACES[name].extra
        raise Unreachable(
            f"--on {name} needs {error.name}, which is not installed",
            f"pip install 'farandole[{extra}]'" if extra else "install farandole again",
        ) from None

"""The places that run jobs: a row for each, with where its service is imported from when it is used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import NamedTuple, cast

from farandole.base.spelling import one_of
from farandole.control.jobs.errors import Refused, UnknownJob, Unreachable
from farandole.control.jobs.service import JobService

VARIABLE = "FARANDOLE_ON"
"""Names the place for commands that do not."""


class Place(NamedTuple):
    """Where jobs run, what its service is made by, and what has to be installed for it."""

    sentence: str
    connect: str
    """`module:function`; the function takes the environment and returns a `JobService`."""
    extra: str = ""
    """What `pip install 'farandole[...]'` adds for it."""
    found: str = ""
    """`module:function`: whether it is there, without waiting; "": it is taken only when it is named."""
    away: str = ""
    """`module:function`: the `Unreachable` of a place that is there but does not answer now, without waiting, or None.
    It is asked only when nobody has named the place."""


PLACES: dict[str, Place] = {
    "queue": Place(
        "the queue of these machines: farandole queue start",
        "farandole.control.queue.client:connect",
        found="farandole.control.queue.address:is_there",
        away="farandole.control.queue.client:away",
    ),
    "kubernetes": Place(
        "the cluster that kubectl would use", "farandole.control.kubernetes.service:connect", extra="kubernetes"
    ),
    "slurm": Place("the Slurm cluster of this login node: sbatch", "farandole.control.slurm.service:connect"),
    "lsf": Place("the LSF cluster of this login node: bsub", "farandole.control.lsf.service:connect"),
    "local": Place("this machine: elastic jobs of this user", "farandole.control.launcher.daemon.local_jobs:connect"),
}


def default_place(environment: Mapping[str, str]) -> str:
    """Return the place that is meant when none is named: what `FARANDOLE_ON` says, a queue that is there, or `local`.

    Kubernetes, Slurm and LSF are never guessed: to submit there by mistake costs other people's machines.
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
        name: of the place; None: the default.
        environment: this process's.

    Raises:
        Refused: there is no such place.
        Unreachable: what it needs is not installed, or it does not answer.
    """
    name = name or default_place(environment)
    if name not in PLACES:
        raise Refused(f"jobs cannot run on {name!r}", one_of(name, PLACES))
    return name, cast(JobService, _import(name, PLACES[name].connect)(environment))


def connect_to_jobs(
    name: str | None, environment: Mapping[str, str], job: str | None, warn: Callable[[Unreachable], None]
) -> tuple[str, JobService]:
    """Return the name of the place of jobs that were started before, and its service.

    A default place that does not answer hides no job of this machine: its error is passed to `warn`, and this machine
    is taken instead. If the one job that is asked for is not found here, its place is asked, and waited for.

    Args:
        name: of the place; None: the default.
        environment: this process's.
        job: the one that is asked for; None: all jobs.
        warn: takes the error.

    Raises:
        Refused: there is no such place.
        Unreachable: what it needs is not installed.
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

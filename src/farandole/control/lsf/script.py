"""The batch script of a job, and its requests to LSF. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from farandole.control.batch_systems.script import body, extra_options
from farandole.control.batch_systems.system import mark_of
from farandole.control.jobs.errors import Refused
from farandole.control.jobs.spec import DEFAULT_QUEUE, JobSpec

GPU = "nvidia.com/gpu"
# LSF gives the hosts and their slots as pairs of names and numbers.
_HOSTS = 'set -- $LSB_MCPU_HOSTS; hosts=; while [ $# -gt 1 ]; do hosts="$hosts,$1:$2"; shift 2; done'


def batch_script(spec: JobSpec, log: Path, exit_file: Path, program: str, key: str) -> str:
    """Return the script for bsub; the arguments are those of `control.batch_systems.system.BatchSystem.script`.

    Raises:
        Refused: LSF cannot give the job what it asks for.
    """
    # LSF would append its own report to the file of its option -o.
    lines = [
        "#!/bin/bash",
        *(f"#BSUB {option}" for option in _options(spec, key)),
        f"exec >> {shlex.quote(str(log))} 2>&1",
    ]
    run = f'{shlex.quote(program)} run -H "${{hosts#,}}"'
    return body([*lines, _HOSTS], spec, run, '"$LSB_DJOB_NUMPROC"', exit_file, key)


def _options(spec: JobSpec, key: str) -> Iterator[str]:
    yield f"-J {spec.name}"
    yield f"-Jd {mark_of(key)}"
    yield f"-n {spec.workers.replicas}"
    yield "-o /dev/null"
    if spec.working_directory:
        yield f"-cwd {shlex.quote(spec.working_directory)}"
    if spec.queue != DEFAULT_QUEUE:
        yield f"-q {spec.queue}"
    if spec.priority:
        raise Refused(
            f"priority {spec.priority}: the meaning of users' priorities in LSF is up to its administrator",
            "where it has user priorities: options: {lsf: ['-sp 60']} in the file of the job",
        )
    yield "-rn" if spec.how_suspended == "never" else "-r"
    for name, value in spec.resources.items():
        if name != GPU or not value.isdecimal():
            raise Refused(
                f"resource {name}: {value}: it cannot be requested from LSF here, because its units depend on the site",
                "such as options: {lsf: ['-M 8GB']} in the file of the job",
            )
        yield f"-gpu num={value}/task"
    yield from extra_options(spec, "lsf", "bsub", "['-W 60', '-M 8GB']")

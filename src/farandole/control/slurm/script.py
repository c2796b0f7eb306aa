"""The batch script of a job, and its requests to Slurm. Pure."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path

from farandole.control.batch_systems.script import body, extra_options
from farandole.control.batch_systems.system import mark_of
from farandole.control.jobs.errors import Refused
from farandole.control.jobs.quantity import quantity
from farandole.control.jobs.spec import DEFAULT_QUEUE, JobSpec

GPU = "nvidia.com/gpu"


def batch_script(spec: JobSpec, log: Path, exit_file: Path, program: str, key: str) -> str:
    """Return the script for sbatch.

    Args:
        spec: the job, which has a name.
        log: the file for all its output.
        exit_file: the file for its exit code: Slurm forgets jobs after some minutes.
        program: the path of `farandole` on the compute nodes.
        key: the key of the submission.

    Raises:
        Refused: Slurm cannot give the job what it asks for.
    """
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in _options(spec, log, key))]
    return body(lines, spec, f"{shlex.quote(program)} run --launcher srun", '"$SLURM_NTASKS"', exit_file, key)


def _options(spec: JobSpec, log: Path, key: str) -> Iterator[str]:
    yield f"--job-name={spec.name}"
    yield f"--comment={mark_of(key)}"
    yield f"--ntasks={spec.workers.replicas}"
    yield f"--output={_escaped(log)}"
    yield "--open-mode=append"
    if spec.working_directory:
        yield f"--chdir={shlex.quote(spec.working_directory)}"
    if spec.queue != DEFAULT_QUEUE:
        yield f"--partition={spec.queue}"
    if spec.priority > 0:
        raise Refused(
            f"priority {spec.priority}: Slurm lets users only lower the priority of their jobs",
            "a QOS may raise it: options: {slurm: [--qos=high]} in the file of the job",
        )
    if spec.priority < 0:
        yield f"--nice={-100 * spec.priority}"
    yield "--no-requeue" if spec.how_suspended == "never" else "--requeue"
    if spec.how_suspended == "signal":
        yield f"--signal={spec.signal.removeprefix('SIG')}@{spec.grace:.0f}"
    yield from _resources(spec.resources)
    yield from extra_options(spec, "slurm", "sbatch", "[--qos=high, --time=60]")


def _escaped(path: Path) -> str:
    return shlex.quote(str(path).replace("%", "%%"))


def _resources(resources: Mapping[str, str]) -> Iterator[str]:
    cores = 1
    for name, value in resources.items():
        if name == "cpu":
            cores = max(1, math.ceil(_amount(name, value)))
            yield f"--cpus-per-task={cores}"
        elif name == GPU:
            gpus = _amount(name, value)
            if gpus % 1:
                raise Refused(f"resource {name}: {value!r} is not a whole number", "a worker has whole GPUs")
            yield f"--gpus-per-task={int(gpus)}"
        elif name != "memory":
            raise Refused(f"resource {name}: it cannot be requested from Slurm here", "cpu, memory and nvidia.com/gpu")
    if "memory" in resources:
        yield f"--mem-per-cpu={max(1, math.ceil(_amount('memory', resources['memory']) / 2**20 / cores))}M"


def _amount(name: str, text: str) -> Decimal:
    amount = quantity(text)
    if amount is None or amount < 0:
        raise Refused(f"resource {name}: {text!r} is not a valid amount", "such as 4, or 8Gi of memory")
    return amount

"""The place `slurm`: carries out job commands with Slurm's programs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from farandole.control.batch_systems.programs import Programs
from farandole.control.batch_systems.service import BatchJobs
from farandole.control.batch_systems.system import Row, key_of
from farandole.control.slurm.reading import FIELDS, read_rows, row_of
from farandole.control.slurm.script import batch_script


class Slurm:
    """The batch system Slurm: an implementation of `BatchSystem`."""

    place, title = "slurm", "Slurm"

    script = staticmethod(batch_script)

    def submit(self, programs: Programs, script: Path) -> str:
        number = programs.call("sbatch", "--parsable", str(script)).strip().partition(";")[0]
        return number if number.isdecimal() else ""

    def rows(self, programs: Programs) -> Mapping[str, Row]:
        said = programs.call("squeue", "--noheader", "--states=all", f"--format={FIELDS}", f"--user={os.geteuid()}")
        return {line.id: row_of(line) for line in read_rows(said) if key_of(line.comment) is not None}

    def scale(self, programs: Programs, number: str, workers: int) -> None:
        programs.call("scontrol", "update", f"JobId={number}", f"NumTasks={workers}")

    def end(self, programs: Programs, number: str, at_once: bool) -> None:
        programs.call("scancel", *(("--signal=KILL", "--full") if at_once else ()), number)

    def hold(self, programs: Programs, number: str) -> None:
        programs.call("scontrol", "hold", number)

    def requeue_held(self, programs: Programs, number: str) -> None:
        programs.call("scontrol", "requeuehold", number)

    def release(self, programs: Programs, number: str) -> None:
        programs.call("scontrol", "release", number)


def connect(environment: Mapping[str, str]) -> BatchJobs:
    """Return the service of this user's jobs on Slurm."""
    lost = ("Unable to contact", "Socket timed out", "resolve_ctls_from_dns_srv", "establish a configuration source")
    programs = Programs(environment, "Slurm", "scontrol ping", lost)
    return BatchJobs(Slurm(), programs, environment)

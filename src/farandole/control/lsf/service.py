"""The place `lsf`: carries out job commands with LSF's programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from farandole.control.batch_systems.programs import Programs
from farandole.control.batch_systems.service import BatchJobs
from farandole.control.batch_systems.system import Row
from farandole.control.lsf.reading import FIELDS, number_of, read_rows
from farandole.control.lsf.script import batch_script


class Lsf:
    """The batch system LSF: an implementation of `BatchSystem`."""

    place, title = "lsf", "LSF"

    script = staticmethod(batch_script)

    def submit(self, programs: Programs, script: Path) -> str:
        return number_of(
            programs.call("bsub", reads=script)
        )  # bsub reads a script's options only from its standard input.

    def rows(self, programs: Programs) -> Mapping[str, Row]:
        # Without jobs, bjobs prints this and exits with an error.
        return read_rows(programs.call("bjobs", "-a", "-noheader", "-o", FIELDS, may_say="No job found"))

    def scale(self, programs: Programs, number: str, workers: int) -> None:
        programs.call("bmod", "-n", str(workers), number)

    def end(self, programs: Programs, number: str, at_once: bool) -> None:
        programs.call("bkill", *(("-s", "KILL") if at_once else ()), number)

    def hold(self, programs: Programs, number: str) -> None:
        programs.call("bstop", number)

    def requeue_held(self, programs: Programs, number: str) -> None:
        programs.call("brequeue", "-H", number)  # bstop would only stop its processes and keep its slots.

    def release(self, programs: Programs, number: str) -> None:
        programs.call("bresume", number)


def connect(environment: Mapping[str, str]) -> BatchJobs:
    """Return the service of this user's jobs on LSF."""
    lost = ("not responding", "Failed in an LSF library call", "Cannot connect")
    return BatchJobs(Lsf(), Programs(environment, "LSF", "lsid", lost), environment)

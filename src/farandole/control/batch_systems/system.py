"""The interface of a batch system, implemented by `control.slurm` and `control.lsf`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from farandole.control.batch_systems.programs import Programs
from farandole.control.jobs.spec import JobSpec
from farandole.control.jobs.status import JobState

MARK = "farandole"
"""The prefix that marks farandole's jobs; a colon and the key of the submission follow it."""


def mark_of(key: str) -> str:
    """Return the mark of a submission, which the batch system shows with the job.

    LSF shows 17 characters of it.

    Example:
        >>> mark_of("0a1b2c")
        'farandole:0a1b2c'
    """
    return f"{MARK}:{key}"


def key_of(mark: str) -> str | None:
    """Return the key of the submission that a mark names; "" if it names none, None if the job is not farandole's."""
    name, _, key = mark.partition(":")
    return key if name == MARK else None


class Row(NamedTuple):
    """A batch system's report about one job."""

    id: str
    state: JobState
    word: str
    """The batch system's own word for the state."""
    reason: str
    """The reason why the job waits, as one sentence."""
    user: str
    queue: str
    hosts: str
    key: str = ""
    """The key of the submission."""


class BatchSystem(Protocol):
    """A batch system. Methods raise `Unreachable` if it does not answer, and `Refused` if it rejects the request."""

    place: str
    """The name for `--on`."""
    title: str
    """The name shown to people."""

    def script(self, spec: JobSpec, log: Path, exit_file: Path, program: str, key: str) -> str:
        """Return the batch script of a job.

        Args:
            spec: the job, which has a name.
            log: the file for all its output.
            exit_file: the file for its exit code: batch systems forget jobs after a while.
            program: the path of `farandole` on the compute nodes.
            key: the key of the submission, which is in the job's mark.
        """

    def submit(self, programs: Programs, script: Path) -> str:
        """Submit a script; return the job's number, or "" if the answer has none.

        Raises:
            Refused: the job was not accepted.
            Unreachable: the answer is lost; the job may have been accepted.
        """

    def rows(self, programs: Programs) -> Mapping[str, Row]:
        """Return the reports about our jobs, by their numbers."""

    def scale(self, programs: Programs, number: str, workers: int) -> None:
        """Change the number of workers of a waiting job."""

    def end(self, programs: Programs, number: str, at_once: bool) -> None:
        """End a job."""

    def hold(self, programs: Programs, number: str) -> None:
        """Hold a waiting job."""

    def requeue_held(self, programs: Programs, number: str) -> None:
        """End a running job, and put it back into the queue, held."""

    def release(self, programs: Programs, number: str) -> None:
        """Release a held job."""

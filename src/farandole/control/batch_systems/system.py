"""What a batch system has to say and do, so that its jobs have our verbs: see `control.slurm` and `control.lsf`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from farandole.control.batch_systems.programs import Programs
from farandole.control.jobs.spec import JobSpec
from farandole.control.jobs.status import JobState

MARK = "farandole"
"""Identifies our jobs among others; after a colon comes the key of the submission."""


def mark_of(key: str) -> str:
    """Return the mark of a submission, which the batch system shows with the job.

    LSF shows 17 characters of it.

    Example:
        >>> mark_of("0a1b2c")
        'farandole:0a1b2c'
    """
    return f"{MARK}:{key}"


def key_of(mark: str) -> str | None:
    """Return the key of the submission that a mark names; "" if it names none, None if the job is not ours."""
    name, _, key = mark.partition(":")
    return key if name == MARK else None


class Row(NamedTuple):
    """What a batch system says of one job."""

    id: str
    state: JobState
    word: str
    """Its own for that state."""
    reason: str
    """One sentence: why it waits."""
    user: str
    queue: str
    hosts: str
    key: str = ""
    """Of the submission."""


class BatchSystem(Protocol):
    """One batch system. Methods raise `Unreachable` when it does not answer, and `Refused` when it says no."""

    place: str
    """As `--on` names it."""
    title: str
    """As people call it."""

    def script(self, spec: JobSpec, log: Path, exit_file: Path, program: str, key: str) -> str:
        """Return the batch script of a job.

        Args:
            spec: of the job; it has a name.
            log: where all that it prints goes.
            exit_file: where its exit code is written: batch systems forget jobs after a while.
            program: `farandole`, as it is found on the nodes.
            key: of the submission, which is in its mark.
        """

    def submit(self, programs: Programs, script: Path) -> str:
        """Hand a script in; return the job's number, or "" if the answer names none.

        Raises:
            Refused: the job was not taken.
            Unreachable: the answer is lost; the job may have been taken.
        """

    def rows(self, programs: Programs) -> Mapping[str, Row]:
        """Return what is known of our jobs, by their numbers."""

    def scale(self, programs: Programs, number: str, workers: int) -> None:
        """Let a job that waits have another number of workers."""

    def end(self, programs: Programs, number: str, at_once: bool) -> None:
        """End a job."""

    def hold(self, programs: Programs, number: str) -> None:
        """Let a job that waits not begin."""

    def requeue_held(self, programs: Programs, number: str) -> None:
        """End a job that runs, and let it wait, held."""

    def release(self, programs: Programs, number: str) -> None:
        """Let a job that is held begin."""

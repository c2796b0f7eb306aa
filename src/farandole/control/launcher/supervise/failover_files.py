"""The files that a launcher writes for its successor, each replaced atomically.

They contain the job's secret, so only their user can read them. They are not synced to disk: they must outlive the
process but not the machine, since the workers do not outlive the machine either.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from farandole.control.launcher.agents.send_gate import SendGate
from farandole.errors import SpecError

STATE = "state"
"""The name of the decided state (`JobState`), which is written before any action that follows from it."""
LAUNCHER = "launcher"
"""The name of the launcher's other facts, about processes and their output."""
PARTS = (STATE, LAUNCHER)


class NothingLeft(SpecError):
    """No part of the job that was to be taken over is alive."""


class NotTakenOver(SpecError):
    """The job continues, but was not taken over. Taking over can be retried: the files still exist."""


class FailoverStore(Protocol):
    """The storage for the facts that the successor of a launcher needs.

    Attributes:
        gate: delays messages until the facts that they follow from are written.
        trouble: the error of the last failed write.
    """

    gate: SendGate
    trouble: str

    def save(self, part: str, content: bytes) -> bool:
        """Replace one part, or begin to replace it; return whether that succeeded."""

    def watch(self, changed: Callable[[bool], None]) -> None:
        """Call `changed` with False if a write has failed, and with True once everything is written again."""

    def left(self, part: str) -> bytes | None:
        """Return the content of a part; None if there is none."""

    def is_whole(self) -> bool:
        """Return whether a job can be taken over from the parts."""


class FailoverFiles:
    """The files of one job.

    Args:
        directory: the directory of the files.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.gate = SendGate()
        self.trouble = ""

    def watch(self, changed: Callable[[bool], None]) -> None:
        """Do nothing: a file is written at once, or not at all."""

    def save(self, part: str, content: bytes) -> bool:
        """Replace one file, and return whether that succeeded.

        On a full disk the file is removed, so that no launcher continues from an outdated one.
        """
        draft = self._directory / f".{part}.left"
        try:
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(content)
            draft.replace(self._path(part))
        except OSError as error:
            self.trouble = f"{draft}: {error.strerror or error}"
            self._remove(part)
            return False
        return True

    def left(self, part: str) -> bytes | None:
        """Return the content of a file; None if there is none."""
        try:
            return self._path(part).read_bytes()
        except OSError:
            return None

    def is_whole(self) -> bool:
        """Return whether a job can be taken over from the files."""
        return all(self._path(part).exists() for part in PARTS)

    def clear(self) -> None:
        """Remove the files: the job has ended."""
        for part in PARTS:
            self._remove(part)

    def _remove(self, part: str) -> None:
        with contextlib.suppress(OSError):
            self._path(part).unlink()

    def _path(self, part: str) -> Path:
        return self._directory / f"{part}.left"

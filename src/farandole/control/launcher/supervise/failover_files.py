"""What a launcher leaves to its successor: a few files beside each other, each replaced as a whole.

They have the job's secret in them, and are for their user's eyes only. Nothing here waits for a disk: what is left is
to outlive the process, not the machine, because the workers do not outlive that either.
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
"""What is decided on (`JobState`); written before anything is done that follows from it."""
LAUNCHER = "launcher"
"""What else the launcher knows, as of processes and their output."""
PARTS = (STATE, LAUNCHER)


class NothingLeft(SpecError):
    """Of the job that was to be taken over, nothing lives any more."""


class NotTakenOver(SpecError):
    """The job goes on, and was not taken over. That can be tried again, as what was left is still there."""


class FailoverStore(Protocol):
    """Where a launcher leaves what its successor has to know.

    Attributes:
        gate: lets what follows from something pass when that is written.
        trouble: why something could not be written the last time.
    """

    gate: SendGate
    trouble: str

    def keep(self, part: str, content: bytes) -> bool:
        """Replace one part, or begin to; return whether that was possible."""

    def watch(self, changed: Callable[[bool], None]) -> None:
        """Call with False when it turns out later that it was not possible, and with True when all is written again."""

    def left(self, part: str) -> bytes | None:
        """Return what was left; None: nothing was."""

    def is_whole(self) -> bool:
        """Return whether a job can be taken over from what was left."""


class FailoverFiles:
    """The files of one job.

    Args:
        directory: where they are.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.gate = SendGate()
        self.trouble = ""

    def watch(self, changed: Callable[[bool], None]) -> None:
        """Nothing turns out later: a file is written at once, or not at all."""

    def keep(self, part: str, content: bytes) -> bool:
        """Replace one of them, and return whether that was possible.

        On a full disk there is none then: no launcher may go on from what is not true any more.
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
        """Return what was left; None: nothing was."""
        try:
            return self._path(part).read_bytes()
        except OSError:
            return None

    def is_whole(self) -> bool:
        """Return whether a job can be taken over from what was left."""
        return all(self._path(part).exists() for part in PARTS)

    def clear(self) -> None:
        """Leave nothing: the job has ended."""
        for part in PARTS:
            self._remove(part)

    def _remove(self, part: str) -> None:
        with contextlib.suppress(OSError):
            self._path(part).unlink()

    def _path(self, part: str) -> Path:
        return self._directory / f"{part}.left"

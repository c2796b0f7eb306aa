"""Calls of a batch system's programs, and their errors."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from farandole.control.jobs.errors import Refused, Unreachable

ANSWER_SECONDS = 30.0


class Programs:
    """The programs of one batch system, in the PATH.

    Args:
        environment: the environment of this process.
        title: the name of the batch system.
        look: the command that shows whether it is running, such as `scontrol ping`.
        unreachable: texts that its programs print when they cannot reach it.
    """

    def __init__(self, environment: Mapping[str, str], title: str, look: str, unreachable: tuple[str, ...]) -> None:
        self._environment = dict(environment)
        self._title = title
        self._look = f"check that {title} is running: {look}"
        self._unreachable = unreachable

    def call(self, program: str, *words: str, reads: Path | None = None, may_say: str = "") -> str:
        """Run a program and return its output.

        Args:
            program: the name of the program.
            words: its arguments.
            reads: the file for its standard input; None: no input.
            may_say: the beginning of an error message that is to be ignored.

        Raises:
            Unreachable: the program is missing, or the batch system does not answer.
            Refused: the batch system rejects the request.
        """
        try:
            with open(reads or "/dev/null", "rb") as given:
                done = subprocess.run(
                    [program, *words],
                    capture_output=True,
                    text=True,
                    timeout=ANSWER_SECONDS,
                    env=self._environment,
                    stdin=given,
                )
        except FileNotFoundError:
            raise Unreachable(
                f"{program} is not on the PATH", f"log in to a machine from which {self._title} can be used"
            ) from None
        except subprocess.TimeoutExpired:
            raise Unreachable(f"{program} does not answer", self._look) from None
        said = done.stderr.strip()
        if done.returncode != 0 and not (may_say and said.startswith(may_say)):
            lines = said.splitlines() or [f"it ended with code {done.returncode}"]
            first = lines[0].removeprefix(f"{program}: ").removeprefix("error: ")
            is_lost = any(words in done.stderr for words in self._unreachable)
            raise (Unreachable if is_lost else Refused)(f"{program}: {first}", self._look if is_lost else "")
        return done.stdout

"""The parts that the batch scripts of all batch systems share. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from farandole.control.jobs.errors import Refused
from farandole.control.jobs.spec import JobSpec


def withdrawn_file(exit_file: Path, spec_name: str, key: str) -> Path:
    """Return the path of a file whose existence prevents a submission from running, because another one replaces it."""
    return exit_file.with_name(f".{spec_name}.{key}.withdrawn")


def body(head: Sequence[str], spec: JobSpec, run: str, workers: str, exit_file: Path, key: str) -> str:
    """Return a script that runs a job and records its exit code.

    Args:
        head: the lines at the start.
        spec: the job.
        run: `farandole run` with the options for starting workers, quoted for the shell.
        workers: the number of workers, as a shell expression.
        exit_file: the file for the exit code.
        key: the key of the submission.
    """
    stays = f"[ ! -e {shlex.quote(str(withdrawn_file(exit_file, spec.name, key)))} ] || exit 0"
    exports = [f"export {name}={shlex.quote(value)}" for name, value in sorted(spec.environment.items())]
    checkpoint = f" --checkpoint-dir {shlex.quote(spec.checkpoint)} --resume auto" if spec.checkpoint else ""
    line = f"{run} -np {workers}{checkpoint} {shlex.join(spec.command)}"
    quoted = shlex.quote(str(exit_file))
    end = ["code=$?", f"echo $code > {quoted}", "exit $code", ""]
    return "\n".join([*head, stays, f"rm -f {quoted}", *exports, line, *end])


def extra_options(spec: JobSpec, place: str, program: str, such_as: str) -> Sequence[str]:
    """Return the batch system's options from the file of a job.

    Raises:
        Refused: they are not a list of options.
    """
    extra = spec.options.get(place, ())
    if not isinstance(extra, (list, tuple)) or not all(
        isinstance(option, str) and option.startswith("-") for option in extra
    ):
        raise Refused(f"options.{place}: expected a list of options of {program}", f"such as {such_as}")
    return tuple(extra)

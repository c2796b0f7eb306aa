"""Time commands: to their end, or until the last of their workers has noted that it is done.

A worker notes the time of the monotonic clock, in nanoseconds, in a file of its own in `BENCHMARK_FOLDER`.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.conductor import Conductor, Row
from benchmarks.peers.base import ROOT

TIME = "time"
_SECONDS = 60.0


def time_command(
    conductor: Conductor, what: str, command: Sequence[str], environment: Mapping[str, str] | None = None
) -> Row:
    """Time a command to its end."""
    return time_rounds(conductor, what, lambda folder: seconds_to_end(command, folder, environment))


def time_start(
    conductor: Conductor,
    what: str,
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    workers: int = 2,
) -> Row:
    """Time a command until the last of its workers has done its first allreduce."""

    def take(folder: Path) -> float:
        started = _run(command, folder, environment, _SECONDS)
        ended = [int(file.read_text()) for file in folder.iterdir()]
        if len(ended) != workers:
            raise RuntimeError(f"only {len(ended)} of {workers} workers noted their end")
        return (max(ended) - started) / 1e9

    return time_rounds(conductor, what, take)


def time_rounds(conductor: Conductor, what: str, take: Callable[[Path], float], rounds: int | None = None) -> Row:
    """Time something several times. A failure is reported, and ends the repetitions.

    Args:
        conductor: the conductor that failures are reported to.
        what: its name in the table.
        take: a function that does it once and returns the seconds. It gets an empty folder, which is removed
            afterwards.
        rounds: the number of repetitions; None: as many as the conductor's rounds.
    """
    row = Row({"what": what})
    for _ in range(rounds or conductor.rounds):
        with tempfile.TemporaryDirectory() as folder:
            try:
                seconds = take(Path(folder))
            except (subprocess.SubprocessError, OSError, RuntimeError) as error:
                output = (getattr(error, "stderr", None) or "")[-800:]
                conductor.failures.append(f"{what}: {error} {output}")
                conductor.say(f"    warning: {what}: {error}\n{output}")
                row.notes[TIME] = "failed"
                break
            row.seconds.setdefault(TIME, []).append(seconds)
    conductor.say(f"    {what}")
    return row


def seconds_to_end(
    command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None, limit: float = _SECONDS
) -> float:
    """Run a command to its end and return how long it took.

    Raises:
        SubprocessError: it failed, or did not end within `limit` seconds.
        OSError: it could not be started.
    """
    started = _run(command, folder, environment, limit)
    return (time.monotonic_ns() - started) / 1e9


def _run(command: Sequence[str], folder: Path, environment: Mapping[str, str] | None, limit: float) -> int:
    """Run a command to its end and return when it began, in nanoseconds of the monotonic clock."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    own = {"BENCHMARK_FOLDER": str(folder), "PYTHONPATH": path, **(environment or {})}
    started = time.monotonic_ns()
    subprocess.run(
        command,
        env={**os.environ, **own},
        stdin=subprocess.DEVNULL,
        check=True,
        capture_output=True,
        text=True,
        timeout=limit,
    )
    return started

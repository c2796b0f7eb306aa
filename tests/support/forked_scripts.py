"""Runs scripts in workers that a nursery forks, so that processes need not import the script's framework.

The launcher is not used: whether a script runs under it must be tested separately.
"""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import sys
from pathlib import Path

from worlds import Nursery, World

SCRIPT_SECONDS = 110.0


def run_on_workers(
    nursery: Nursery, count: int, script: Path, *arguments: str, folder: Path | None = None
) -> list[str]:
    """Run a script on the workers of one world, and return what each printed on standard output, in rank order.

    Args:
        nursery: the nursery that forks the workers.
        count: the number of workers.
        script: the Python file.
        arguments: the script's arguments.
        folder: the working directory; None: the current one.
    """
    with World(nursery, count) as world:
        return world.run(_run, str(script), arguments, str(folder or Path.cwd()), seconds=SCRIPT_SECONDS)


def run_alone(nursery: Nursery, script: Path, *arguments: str) -> str:
    """Run a script in one process that no launcher has started, and return its standard output."""
    worker = nursery.fork({})
    try:
        worker.send(_run, (str(script), arguments, str(Path.cwd())))
        output: str = worker.receive(SCRIPT_SECONDS)
    finally:
        worker.close()
    return output


def _run(script: str, arguments: tuple[str, ...], folder: str) -> str:
    os.chdir(folder)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output):
            runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise AssertionError(f"the script has ended with {end.code!r} after:\n{output.getvalue()}") from end
    return output.getvalue()

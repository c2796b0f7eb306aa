"""Another checkout of farandole, with its own Python, packages, library and worker program.

So a change is measured beside the state before it, in the same run (`make bench BENCH='--against ../before'`).
Its workers join through its own `benchmarks.peers.farandole`; this module has the conductor's side only.
"""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.peers.base import Launch, Setup, worker_environment

NAME = "farandole, other checkout"


def missing() -> str | None:
    """Return None: `check_checkout` has checked it before anything is measured."""
    return None


def check_checkout(checkout: Path) -> None:
    """Make sure that a folder is a checkout that is built.

    Raises:
        ValueError: the folder is not a built checkout; the text says what to do.
    """
    for part, remedy in (
        ("benchmarks/worker.py", "name the top folder of a checkout of farandole"),
        (".venv/bin/python", "run 'make setup' there"),
        ("src/farandole/**/libfarandole.so", "run 'make setup' there"),  # Its folder has moved since.
    ):
        if not any(checkout.glob(part)):
            raise ValueError(f"{checkout} has no {part}; {remedy}")


def launches(setup: Setup) -> list[Launch]:
    """Return one launcher: the other checkout's `farandole run`, on this host."""
    assert setup.against is not None and setup.bed is None
    python = str(setup.against / ".venv" / "bin" / "python")
    environment = worker_environment(setup) | {
        "PYTHONPATH": os.pathsep.join([str(setup.against), str(setup.against / "src")]),
        "BENCHMARK_PEER": "farandole",
    }
    size = str(setup.topology.size)
    return [Launch((python, "-m", "farandole", "run", "-np", size, python, "-m", "benchmarks.worker"), environment)]

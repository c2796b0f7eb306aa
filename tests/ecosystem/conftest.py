"""Programs of this folder are run by `farandole run`, and their ranks print reports as JSON."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
SECONDS = 170
NEEDED = ("lightning", "transformers", "accelerate")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    for item in items:
        if missing and item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.skip(f"{missing[0]} is not installed; run `make test-ecosystem`"))


@pytest.fixture
def launch() -> Callable[..., list[Any]]:
    """Return a function that runs a program of this folder and returns the reports, in the order in which they came."""
    return _launch


def _launch(program: str, *arguments: object, options: tuple[str, ...] = ("-np", "2"), **variables: str) -> list[Any]:
    command = [sys.executable, "-m", "farandole", "run", *options, sys.executable, str(HERE / program)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **variables}
    done = subprocess.run(
        [*command, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    reports = [json.loads(line[line.index("{") :]) for line in done.stdout.splitlines() if '{"' in line]
    assert reports, done.stdout + done.stderr
    return reports

"""Tests of Spark need an environment of their own: `make test-spark`."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Iterator

import pytest
from spark_sessions import processes_with, wait_until

collect_ignore_glob = [] if importlib.util.find_spec("pyspark") else ["test_*.py"]


@pytest.fixture
def mark() -> Iterator[str]:
    """Return a variable for the workers of a test, of which none is left afterwards."""
    mark = f"farandole_test_{os.getpid()}_{time.monotonic_ns()}"
    yield mark
    wait_until(lambda: not processes_with(f"MARK={mark}"), "workers are left")

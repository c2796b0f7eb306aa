"""A queue of a test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from queue_bench import QueueBench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[QueueBench]:
    """Return what starts a queue, and commands for it."""
    bench = QueueBench(tmp_path)
    yield bench
    bench.clean_up()

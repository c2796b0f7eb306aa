"""The example, on two workers: real processes through the real launcher."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from worlds import Nursery

SCRIPT = Path(__file__).resolve().parents[3] / "examples" / "mxnet_digits.py"


def test_two_workers_learn_the_digits(mxnet_nursery: Nursery) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "farandole", "run", "-np", "2", sys.executable, str(SCRIPT), "--goal", "0.97"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    accuracy = re.search(r"^\[0\]<stdout>:test accuracy: ([0-9.]+)$", done.stdout, re.MULTILINE)
    assert accuracy
    assert float(accuracy[1]) >= 0.97
    assert "parameters: bit-identical on 2 worker(s)" in done.stdout

"""The examples of loops whose workers come and go, under the real launcher: a worker is killed, and they learn."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from launched import Job

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.mark.parametrize(
    ("name", "needed", "steps"),
    [
        ("elastic_tensorflow.py", ("tensorflow", "keras", "sklearn"), r"69\d"),
        ("elastic_jax.py", ("jax", "optax", "sklearn"), "660"),
    ],
    ids=["tensorflow", "jax"],
)
def test_examples_learn_the_digits_although_a_worker_is_killed(
    start: Callable[..., Job], name: str, needed: tuple[str, ...], steps: str
) -> None:
    for package in needed:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    script = EXAMPLES / name
    job = start("-np", "2", "--min-np", "1", command=(sys.executable, str(script), "--pause", "0.01", "--goal", "0.97"))
    job.says(r"epoch 3 of 30: 2 workers", 60)
    (victim,) = [pid for pid in job.left() if _runs(pid, script) and _variable(pid, "FARANDOLE_WORKER") == "1"]
    os.kill(victim, signal.SIGKILL)
    # Another one may be there by then.
    accuracy = job.says(rf"accuracy ([0-9.]+) after {steps} steps, (1 worker|2 workers) at the end", 60)
    assert float(accuracy[1]) >= 0.97
    assert job.end() == 0, job.said
    assert re.search(r"epoch \d+ of 30: 1 worker,", job.said), job.said


def _runs(pid: int, script: Path) -> bool:
    return str(script).encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:2]


def _variable(pid: int, name: str) -> str | None:
    variables = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(each.split("=", 1) for each in variables if "=" in each).get(name)

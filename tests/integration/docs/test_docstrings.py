"""The examples of docstrings run, each room's in a process that is a world of one worker."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from run_docstrings import FRONT_ENDS, PACKAGE

RUN = Path(__file__).resolve().parents[2] / "support" / "run_docstrings.py"
_MXNET = ("__init__", "optimizer", "parameters", "trainer")
_PARQUET = ("__init__", "batches", "source")
_RAY = ("data", "train", "train_report")
_SPARK = ("__init__", "fixed", "growing", "horovod_runner", "keras", "lightning", "preparation", "torch")
# Sources with examples that do not run, by `# doctest: +SKIP`, and why.
WHY_NOT = {
    **{f"mxnet/{name}.py": "MXNet has an environment of its own" for name in _MXNET},
    "jax/orbax.py": "it needs Orbax",
    "tensorflow/data/compute_service.py": "it needs the service of another job",
    "tensorflow/optimizer.py": "it is for graphs of TensorFlow 1, as in examples/tensorflow1_digits.py",
    "tensorflow/variables.py": "it is for sessions of TensorFlow 1, as in examples/tensorflow1_digits.py",
    "worker/core/basics.py": "its result is that of a training",
    "control/jobs/handle.py": "it submits jobs, which tests of places do",
    "numpy/variables.py": "it is for variables of frameworks, whose front ends have the example that runs",
    "observe/trackers.py": "it needs the package tensorboard; docs/how-to/metrics.md has it with another writer",
    **{f"parquet/{name}.py": "it needs PyArrow; docs/how-to/parquet.md has it" for name in _PARQUET},
    **{f"ray/{name}.py": "it needs Ray; docs/how-to/ray.md has it" for name in _RAY},
    **{f"spark/{name}.py": "it needs PySpark; docs/how-to/spark.md has it" for name in _SPARK},
    "base/wire/interfaces.py": "its result is that of a machine with such a network",
}


@pytest.mark.parametrize("room", ["others", *FRONT_ENDS])
def test_examples_run(room: str, tmp_path: Path) -> None:
    if room in FRONT_ENDS and importlib.util.find_spec(room) is None:
        pytest.skip(f"{room} is not installed")
    environment = {**os.environ, "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, str(RUN), room, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_does_not_run_has_a_reason() -> None:
    skipped = {
        str(file.relative_to(PACKAGE))
        for file in PACKAGE.rglob("*.py")
        if re.search(r"doctest: \+SKIP$", file.read_text(), re.MULTILINE)
    }
    assert skipped == WHY_NOT.keys()

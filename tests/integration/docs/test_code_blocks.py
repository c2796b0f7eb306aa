"""The documentation's blocks of Python run on two workers, and its scripts by the commands that stand behind them."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from code_blocks import DOCS, Block, all_blocks, blocks

SUPPORT = Path(__file__).resolve().parents[2] / "support"
# A framework is loaded once for all pages that use it.
FRAMEWORKS = {
    "torch": [
        "how-to/checkpoints.md",
        "how-to/compression.md",
        "how-to/observing.md",
        "how-to/torch_distributed.md",
        "how-to/profiling.md",
        "how-to/metrics.md",
    ],
    "torch, elastic": ["explanation/elastic.md", "get-started/numpy.md", "get-started/pytorch.md"],
    "tensorflow": ["get-started/keras.md", "get-started/tensorflow.md", "reference/tensorflow.md"],
    "jax": ["get-started/jax.md", "reference/jax.md"],
    # They have environments of their own: see tools/frameworks.py.
    "mxnet": ["get-started/mxnet.md"],
    "pyarrow": ["how-to/parquet.md"],
}
# Pages whose blocks start jobs by themselves.
ALONE = ["how-to/notebook.md", "how-to/spark.md", "how-to/testing.md"]
# Pages of which a script is run as a reader runs it; a page that is in FRAMEWORKS too has more than the script.
SCRIPTS = [
    *(f"get-started/{name}.md" for name in ("pytorch", "keras", "tensorflow", "jax", "numpy", "mxnet")),
    # They have an environment of their own: see tools/frameworks.py.
    *(
        f"how-to/{name}.md"
        for name in ("accelerate", "language_model", "lightning", "ray", "recipes", "trackers", "transformers")
    ),
    "how-to/images.md",
]
LAUNCH = [sys.executable, "-m", "farandole", "run", "-np", "2"]


def start(command: list[str], folder: Path, **environment: str) -> str:
    path = os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")])
    # A cluster of Ray would write its token into the user's home, and `ray.init()` would connect to one that runs here.
    of_ray = {"RAY_AUTH_MODE": "disabled", "RAY_ADDRESS": "local"}
    environment = {**os.environ, **of_ray, "PYTHONPATH": path, "KERAS_BACKEND": "tensorflow", **environment}
    # The time of the test is the only limit, and a command ends with its test.
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def needed(what: str) -> None:
    # The tutorial on images needs nothing more than others, but time.
    packages = {
        "images": "lightning",
        "language_model": "transformers",
        "recipes": "torchmetrics",
        "trackers": "mlflow",
        "spark": "pyspark",
    }
    known = r"tensorflow|keras|jax|mxnet|accelerate|lightning|transformers|pyarrow|ray\b"
    for word in re.findall("|".join([known, *packages]), what):
        name = packages.get(word, word)
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_blocks_run_on_two_workers(framework: str, tmp_path: Path) -> None:
    needed(framework)
    start([*LAUNCH, sys.executable, str(SUPPORT / "run_blocks.py"), str(tmp_path), *FRAMEWORKS[framework]], tmp_path)


# Spark starts, and each training starts tasks, whose processes take minutes on a crowded machine.
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("page", ALONE)
def test_blocks_run_in_a_process_without_a_launcher(page: str, tmp_path: Path) -> None:
    needed(page)
    start([sys.executable, str(SUPPORT / "run_blocks.py"), str(tmp_path), page], tmp_path)


# Some pages have several commands, of which one goes on where another has stopped, or a cluster of Ray to start.
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("page", SCRIPTS)
def test_scripts_run_by_the_commands_behind_them(page: str, tmp_path: Path) -> None:
    needed(page)
    ran = 0
    for block in blocks(DOCS / page):
        if script := re.match(r"script (\S+)", block.told):
            (tmp_path / script[1]).write_text(block.text)
        elif block.told == "run":
            ran += 1
            assert re.search(r"loss|accuracy", start(words(block), tmp_path))
    assert ran >= 1


def words(block: Block) -> list[str]:
    """Return the command of a block with this Python and this farandole."""
    shown = shlex.split(block.text)
    assert shown[0] in {"farandole", "python"} and shown.count("python") == 1
    words = [sys.executable if word == "python" else word for word in shown]
    return [sys.executable, "-m", *words] if shown[0] == "farandole" else words


def test_every_page_with_python_is_run() -> None:
    run = {page for pages in FRAMEWORKS.values() for page in pages} | set(SCRIPTS) | set(ALONE)
    python = {block.page for block in all_blocks() if block.language in {"python", "pycon"} and not block.why_not}
    assert python == run

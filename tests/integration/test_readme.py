"""What the README shows is what happens."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "README.md"


def script(sign: str) -> str:
    """Return the script of the README's diff: without its additions (`-`), or without what they replace (`+`)."""
    found = re.search(r"```diff\n(.*?)```", README.read_text(), re.DOTALL)
    assert found
    return "".join(line[1:] for line in found[1].splitlines(keepends=True) if line[:1] in {" ", sign, "\n"})


def loss(output: str) -> float:
    found = re.findall(r"loss ([0-9.]+)$", output, re.MULTILINE)
    assert len(found) == 1, output
    return float(found[0])


def run(tmp_path: Path, text: str, *launch: str) -> str:
    file = tmp_path / "train.py"
    file.write_text(text)
    command = [*launch, sys.executable, str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return what the script says before it is made distributed."""
    return run(tmp_path_factory.mktemp("plain"), script("-"))


@pytest.mark.parametrize("workers", [1, 2])
def test_the_script_made_distributed_learns_the_same(tmp_path: Path, workers: int, plain: str) -> None:
    launch = [sys.executable, "-m", "farandole", "run", "-np", str(workers)]
    assert loss(run(tmp_path, script("+"), *launch)) == pytest.approx(loss(plain), abs=2e-6)

"""Whether a host's Python has what a script imports, before anything starts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from farandole.control.agent.probe import imported_by, look
from farandole.control.agent.protocol import Look, Looked, Task, TaskEnded


class TasksAtOnce:
    """Carries a task out while it is waited for."""

    def start(self, task: Task, ended: Callable[[TaskEnded], None]) -> None:
        done = subprocess.run(task.command, cwd=task.directory, capture_output=True, timeout=60)
        ended(TaskEnded(task.number, done.returncode, done.stdout))


def looked_at(script: str, directory: Path) -> Looked:
    (directory / "src").mkdir()
    (directory / "src" / "beside.py").touch()
    (directory / "src" / "train.py").write_text(script)
    heard: list[Looked] = []
    look(Look(1, (sys.executable, "src/train.py"), str(directory), {}), TasksAtOnce(), heard.append)  # type: ignore[arg-type]
    return heard[0]


def test_missing_module_is_reported(tmp_path: Path) -> None:
    answer = looked_at("import os, beside, surely_not_there.part\nimport farandole.torch", tmp_path)
    assert answer.missing == ("surely_not_there",) and answer.python == sys.executable
    version = sys.version.split()[0]
    assert answer.problem == (
        f"its Python, {sys.executable} ({version}), has no surely_not_there, which src/train.py imports"
    )
    assert set(answer.versions) == {"python", "farandole"}


def test_installed_modules_are_no_problem(tmp_path: Path) -> None:
    assert not looked_at("import os, beside\nfrom __future__ import annotations", tmp_path).problem


@pytest.mark.parametrize(
    ("script", "checked"),
    [
        ("import wandb.sdk as w\nfrom yaml import load\nfrom . import mine", ["wandb", "yaml"]),
        # One that may be missing, or is needed in some cases only; a framework is needed nevertheless.
        ("try:\n  import wandb, torch\nexcept ImportError:\n  wandb = None", ["torch"]),
        ("def late():\n  import wandb, jax", ["jax"]),
        # Scripts that find modules elsewhere.
        ("import sys\nsys.path.append('lib')\nimport mine, torch", ["torch"]),
        ("import importlib\nimport mine", []),
        ("from site import addsitedir\nimport mine", []),
        ("this is not Python", []),
    ],
)
def test_unconditional_imports_and_frameworks_are_required(tmp_path: Path, script: str, checked: list[str]) -> None:
    (tmp_path / "train.py").write_text(script)
    assert imported_by(str(tmp_path / "train.py")) == checked


def test_missing_results_of_autotuning_are_reported(tmp_path: Path) -> None:
    heard: list[Looked] = []
    for path in (tmp_path / "tuned.json", tmp_path):
        look(Look(1, ("true",), str(tmp_path), {}, str(path)), TasksAtOnce(), heard.append)  # type: ignore[arg-type]
    assert [each.problem for each in heard] == [
        f"the results of autotuning cannot be read: {tmp_path}/tuned.json: No such file or directory",
        f"the results of autotuning cannot be read: {tmp_path}: Is a directory",
    ]

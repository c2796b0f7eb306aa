"""What `--tf1` arranges before a script starts, without TensorFlow: which modules are the user's, and PYTHONPATH."""

from __future__ import annotations

import builtins
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from farandole.base.tensorflow1 import START_FOLDER, hook, is_asked_for
from farandole.base.tensorflow1.removed import REMOVED, advice
from farandole.control.launcher.plan.environment import with_python_path
from farandole.errors import SettingError


@pytest.mark.parametrize(
    ("importing", "expected"),
    [
        ({"__name__": "__main__", "__file__": "/home/me/old.py"}, True),
        ({"__name__": "__main__"}, True),
        ({"__name__": "models.resnet", "__file__": "/home/me/models/resnet.py"}, True),
        ({"__name__": "keras.src.x", "__file__": "/usr/lib/python3/dist-packages/keras/src/x.py"}, False),
        ({"__name__": "__main__", "__file__": "/venv/lib/python3.11/site-packages/pytest/__main__.py"}, False),
        ({"__name__": "farandole.tensorflow", "__file__": hook.__file__}, False),
        ({"__name__": "json", "__file__": json.__file__}, False),
        ({"__name__": "made_up"}, False),
    ],
)
def test_only_modules_of_the_user_count_as_theirs(importing: dict[str, str], expected: bool) -> None:
    assert hook.is_users_own(importing) == expected


def test_variable_switches_the_hook_on() -> None:
    assert [is_asked_for({"FARANDOLE_TF1": text}) for text in ("1", "yes", "0", "")] == [True, True, False, False]
    assert not is_asked_for({}) and not is_asked_for({"FARANDOLE_RANK": "none"})
    with pytest.raises(SettingError, match="FARANDOLE_TF1"):
        is_asked_for({"FARANDOLE_TF1": "perhaps"})


def test_workers_find_the_hook_before_all_else() -> None:
    assert with_python_path({"A": "1"}, {"PYTHONPATH": "/mine"}) == {"A": "1"}
    asked = {"FARANDOLE_TF1": "1"}
    assert with_python_path(asked, {}) == {**asked, "PYTHONPATH": START_FOLDER}
    # Where the flag is not given, the launcher's own environment may ask for it; an exported path is the user's.
    with_both = with_python_path({"PYTHONPATH": "/theirs"}, {**asked, "PYTHONPATH": "/mine"})
    assert with_both == {"PYTHONPATH": os.pathsep.join([START_FOLDER, "/theirs"])}


def test_dry_run_shows_the_variable_and_the_path() -> None:
    command = [sys.executable, "-m", "farandole", "run", "--tf1", "-np", "2", "--dry-run", "true"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "  FARANDOLE_TF1=1\n" in shown and f"  PYTHONPATH={START_FOLDER}" in shown


def python(code: str, folder: Path, **variables: str) -> str:
    """Run Python as a worker with --tf1 does, and return what it prints; `folder` has modules of the machine's."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FARANDOLE_")}
    path = os.pathsep.join([START_FOLDER, str(folder)])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout


def test_hook_starts_with_python_and_keeps_sitecustomize_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.machines_own = True")
    code = "import builtins, sys; print(machines_own, builtins.__import__.__module__, len(sys.path))"
    before, _, entries = python(code, tmp_path).split()
    assert (before, _) == ("True", "builtins")
    assert python(code, tmp_path, FARANDOLE_TF1="1").split() == ["True", "builtins", entries]
    marked = "import builtins; print(getattr(builtins.__import__, '_farandole_tensorflow1', False))"
    assert [python(marked, tmp_path, FARANDOLE_TF1=asked) for asked in ("1", "0")] == ["True\n", "False\n"]


def test_error_without_tensorflow_names_the_packages_to_install(tmp_path: Path) -> None:
    code = """
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "tensorflow" else find_spec(name, *more)
try:
    import tensorflow as tf
except ModuleNotFoundError as error:
    print(error.name, "|", error)
"""
    said = python(code, tmp_path, FARANDOLE_TF1="1")
    assert said.startswith("tensorflow | FARANDOLE_TF1 (--tf1) is for scripts for TensorFlow 1")
    assert "pip install 'farandole[tensorflow]' tf_keras" in said


def test_removed_modules_name_their_replacement() -> None:
    assert all(advice(name).startswith(f"tensorflow.{name} is not there: ") for name in REMOVED)
    assert not getattr(builtins.__import__, "_farandole_tensorflow1", False)  # None of these tests has installed it.
